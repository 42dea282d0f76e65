#include "bench/bench.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "bench/sizes.hpp"
#include "common/duration.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

/// The first `count` values of an enumeration, in their order.
template <typename T>
std::vector<T> first_values(int count) {
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<T>(i));
  return values;
}

/// The calls of a Coalesce.
constexpr std::int64_t most_in_one_call = 1000;

/// The number of kinds that a command line can name: all but custom, which takes a function and is
/// the last.
constexpr int named_ops = static_cast<int>(ReduceOp::Kind::custom);

std::optional<ReduceOp::Kind> parse_named_op(std::string_view name) noexcept {
  const auto op = parse_reduce_op(name);
  return op == ReduceOp::Kind::custom ? std::nullopt : op;
}

template <typename T>
std::vector<std::string_view> with_all(const std::vector<T>& values) {
  std::vector<std::string_view> names{"all"};
  for (const T value : values) names.push_back(tutti::name_of(value));
  return names;
}

template <typename T>
std::string names_of(const std::vector<T>& values) {
  std::string text;
  for (const T value : values) text += fmt::format(" {}", tutti::name_of(value));
  return text;
}

/// Reads "a,b" or "all". `find` returns an optional; duplicates count once.
template <typename T, typename Find>
Choice<T> parse_list(std::string_view option, std::string_view text, const std::vector<T>& known,
                     Find find) {
  Choice<T> choice;
  choice.given = true;
  choice.all = text == "all";
  if (choice.all) {
    choice.values = known;
    return choice;
  }
  for (const std::string_view item : split_list(option, text)) {
    const std::optional<T> value = find(item);
    if (!value)
      refuse("{} '{}': unknown; give all alone, or names from:{}", option, item, names_of(known));
    choice.add(*value);
  }
  return choice;
}

Choice<const Collective*> parse_collectives(const std::vector<std::string>& arguments) {
  Choice<const Collective*> choice;
  choice.given = !arguments.empty();
  if (arguments.empty()) choice.add(find_collective("all_reduce"));
  for (const std::string& argument : arguments) {
    for (const std::string_view item : split_list("collectives", argument)) {
      if (item == "all") {
        choice.all = true;
        for (const Collective& collective : collectives())
          if (!collective.makes_group) choice.add(&collective);
        continue;
      }
      const Collective* found = find_collective(item);
      if (found == nullptr) {
        std::string known;
        for (const Collective& collective : collectives())
          known += fmt::format(" {}", collective.name);
        refuse("collective '{}': unknown; known: all{}", item, known);
      }
      choice.add(found);
    }
  }
  return choice;
}

std::vector<double> parse_percentiles(std::string_view text) {
  std::vector<double> percentiles;
  for (const std::string_view item : split_list("--percentiles", text))
    percentiles.push_back(parse_number("--percentiles", item, "above 0 and at most 100",
                                       [](double p) { return p > 0 && p <= 100; }));
  std::sort(percentiles.begin(), percentiles.end());
  percentiles.erase(std::unique(percentiles.begin(), percentiles.end()), percentiles.end());
  return percentiles;
}

Choice<PlaceMode> parse_places(std::string_view text) {
  if (text == "both") return {{PlaceMode::out, PlaceMode::in}, true, true};
  constexpr Names<3> known{"out", "in", "both"};
  return {{static_cast<PlaceMode>(parse_choice("--place", text, known))}, false, true};
}

Choice<Counts> parse_counts(std::string_view text) {
  Choice<Counts> choice{{}, false, true};
  for (const std::string_view item : split_list("--counts", text)) choice.add(Counts::parse(item));
  return choice;
}

}  // namespace

OptionList bench_options(BenchOptions& to) {
  Request& request = to.request;
  Timing& timing = to.timing;
  const auto sizes = [&](std::string_view, const std::string& text) {
    request.sizes = parse_sizes(text);
  };
  const auto dtypes = [&](std::string_view option, const std::string& text) {
    request.dtypes = parse_list<DType>(option, text, first_values<DType>(dtype_count), parse_dtype);
  };
  const auto ops = [&](std::string_view option, const std::string& text) {
    request.ops = parse_list<ReduceOp::Kind>(option, text, first_values<ReduceOp::Kind>(named_ops),
                                             parse_named_op);
  };
  const auto root = [&](std::string_view option, const std::string& text) {
    request.all_roots = text == "all";
    if (!request.all_roots)
      request.root = static_cast<int>(parse_integer(option, text, 0, most_ranks - 1));
  };
  const auto place = [&](std::string_view, const std::string& text) {
    request.places = parse_places(text);
  };
  const auto counts = [&](std::string_view, const std::string& text) {
    request.counts = parse_counts(text);
  };
  const auto percentiles = [&](std::string_view, const std::string& text) {
    timing.percentiles = parse_percentiles(text);
    to.percentiles_given = true;
  };
  std::vector<std::string_view> names{"all"};
  for (const Collective& collective : collectives()) names.push_back(collective.name);
  OptionList list{{"COLL", &to.collectives, "all, or collectives (default all_reduce)",
                   "[,COLL...]", "", names}};
  add_launch_options(list, to);
  const OptionList own{
      {"-s,--sizes", Reader{sizes, {}, std::string(default_sizes)},
       "a range such as 8:1G, 1K:64M:x4 or 1M:16M:+1M, or a list such as 4K,1M,100e; see "
       "--help-sizes",
       "SPEC", "Work"},
      {"-d,--dtype", Reader{dtypes, with_all(first_values<DType>(dtype_count)), "f32"},
       "such as f32,bf16, or all", "LIST", "Work"},
      {"-o,--op", Reader{ops, with_all(first_values<ReduceOp::Kind>(named_ops)), "sum"},
       "such as sum,max, or all; premul_sum scales odd ranks by 2, avg of integers truncates",
       "LIST", "Work"},
      {"-r,--root", Reader{root, {"all"}, "0"}, "a rank, or all", "R", "Work"},
      {"--place", Reader{place, {"out", "in", "both"}, "out"},
       "out-of-place or in-place: out, in or both", "WHERE", "Work"},
      {"--counts",
       Reader{counts, {"even", "last-short", "one-empty", "mild", "linear", "one-only"}, "even"},
       "blocks of the ranks: even, last-short, one-empty, mild, linear, zipf:A, one-only or "
       "file:PATH; see --help-sizes",
       "LIST", "Work"},
      {"-m,--aggregate", to_integer(timing.aggregate, 1, most_in_one_call),
       "calls that one Coalesce sends, 1 to 1000; times are per call", "M", "Work"},

      {"--mode", to_choice(timing.mode),
       "throughput; or latency, with an untimed barrier before each call", "MODE", "Timing"},
      {"--min-time", to_duration(timing.min_time),
       "least time per size, for at least 10 iterations", "TIME", "Timing"},
      {"--iters", to_count(timing.iters, 1),
       "iterations per size; auto: as many as fill --min-time", "N", "Timing"},
      {"--warmup", to_count(timing.warmup, 0),
       "calls before each size, not counted; auto: until their times settle", "N", "Timing"},
      {"--overlap", &timing.overlap, "time asynchronous calls, alone and with compute beside them",
       "", "Timing"},
      {"--links", &to.links,
       "after the rows measure the links between all ranks; exit 3 if one is slow", "", "Timing"},
      {"--max-total", to_timeout(to.max_total), "no further size begins after this time", "TIME",
       "Timing"},
      {"--order", to_choice(request.order), "order of the sizes: size or random", "ORDER",
       "Timing"},
      {"--cold", &to.cold, "rotate over more memory than the last-level cache holds", "", "Timing"},
      {"-a,--rank-agg", to_choice(timing.rank_agg),
       "time of an iteration over the ranks: max, mean, min or rank0; bandwidths use the mean",
       "HOW", "Timing"},
      {"--percentiles", Reader{percentiles, {}, "50,90,99"},
       "percentiles of the iterations in the table, and besides 50, 90 and 99 in the JSON", "LIST",
       "Timing"},

      {"--check", to_choice(timing.check),
       "calls of each size whose result is checked: first, all or none", "WHICH", "Check"},
      {"--seed", to_integer(timing.seed, 0, std::numeric_limits<std::int64_t>::max()),
       "seed of the data and of --order random", "S", "Check"},

      {"--samples", to_choice(timing.samples),
       "none, or all: every iteration in JSON, NDJSON and CSV", "WHICH", "Output"},
      {"-q", &to.quiet, "no progress and no notes", "", "Output"},
      {"-v", &to.verbose, "report each size on stderr", "", "Output"},
      {"--help-sizes", &to.help_sizes, "print the size syntax and what a size means, and exit"}};
  list.insert(list.end(), own.begin(), own.end());
  add_output_options(list, to);
  return list;
}

void check_bench(BenchOptions& options) {
  check_launch(options);
  const Timing& timing = options.timing;
  Request& request = options.request;
  request.collectives = parse_collectives(options.collectives);
  request.seed = timing.seed;
  request.async_for = timing.overlap ? "--overlap" : timing.aggregate > 1 ? "--aggregate" : "";
  const auto keeps_samples = [](Format format) {
    return format != Format::table && format != Format::markdown;
  };
  bool kept = keeps_samples(options.format);
  for (const std::string& file : options.files) kept = keeps_samples(format_of(file)) || kept;
  if (timing.samples == Samples::all && !kept)
    refuse("--samples all: a table cannot show them; add -f json or --out FILE.json");
  if (options.quiet && options.verbose)
    refuse("-q and -v exclude each other; leave one of them out");
}

std::string sizes_help() {
  std::string text(size_syntax);
  text += R"(
A size is the total buffer S of nccl-tests, so that columns compare. n is the
number of ranks, algbw = S / time, busbw = algbw x factor.

)";
  text += fmt::format("  {:<18}{:<9}{}\n", "collective", "factor", "S is");
  for (const Collective& collective : collectives())
    text += fmt::format("  {:<18}{:<9}{}\n", collective.name, collective.factor.text,
                        collective.size_is);
  text += R"(
S must be a multiple of the size of the dtype; of n times that, where it is cut
into blocks (S/n) that are all alike. The sizes of a range are rounded up to it.
docs/benchmarking.md derives the factors.

)";
  text += counts_syntax;
  text += R"(
With uneven blocks b_r the factors are

)";
  for (const Collective& collective : collectives())
    if (collective.divides())
      text += fmt::format("  {:<18}{}\n", collective.name, collective.factor.uneven_text);
  text += R"(
and all_to_all sends block r of every rank's S to rank r.
)";
  return text;
}

}  // namespace tutti::tool
