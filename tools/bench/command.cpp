#include "bench/command.hpp"

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

OptionList BenchCommand::options() {
  OptionList list{{"collectives", &collectives_, "all, or some of them (default all_reduce)",
                   "COLL[,COLL...]", ""}};
  launch_texts_.add_to(list);
  const OptionList own{
      {"-s,--sizes", &sizes_, "such as 8:1G or 4K,1M; see --help-sizes", "SPEC", "Work"},
      {"-d,--dtype", &dtypes_, "such as f32,bf16, or all (f32)", "LIST", "Work"},
      {"-o,--op", &ops_, "such as sum,max, or all (sum)", "LIST", "Work"},
      {"-r,--root", &root_, "a rank, or all (0)", "R", "Work"},
      {"--place", &place_, "out, in or both (out)", "WHERE", "Work"},
      {"--counts", &counts_, "blocks: even, last-short, ..., see --help-sizes (even)", "LIST",
       "Work"},
      {"-m,--aggregate", &aggregate_, "calls that a Coalesce sends as one (1)", "M", "Work"},

      {"--mode", &mode_, "throughput, or latency: a barrier before each call", "MODE", "Timing"},
      {"--min-time", &min_time_, "measure each size so long (0.5s)", "TIME", "Timing"},
      {"--iters", &iters_, "auto: at least 10 and --min-time", "N", "Timing"},
      {"--warmup", &warmup_, "calls before each size; auto: until it settles", "N", "Timing"},
      {"--overlap", &overlap_, "asynchronous calls, alone and with compute beside them", "",
       "Timing"},
      {"--links", &links_, "then measure the links between all ranks; one is slow: exit 3", "",
       "Timing"},
      {"--max-total", &max_total_, "measure no further size after it (10m)", "TIME", "Timing"},
      {"--order", &order_, "of the sizes: size or random", "ORDER", "Timing"},
      {"--cold", &cold_, "rotate over more memory than the cache holds", "", "Timing"},
      {"-a,--rank-agg", &rank_agg_, "time of an iteration over ranks: max, mean, min, rank0", "HOW",
       "Timing"},
      {"--percentiles", &percentiles_, "of the iterations (50,90,99)", "LIST", "Timing"},

      {"--check", &check_, "first, all or none of the calls (first)", "WHICH", "Check"},
      {"--seed", &seed_, "of the data and of --order random (0)", "S", "Check"},

      {"--samples", &samples_, "none, or all iterations, in the JSON", "WHICH", "Output"},
      {"-q", &quiet_, "no progress and no notes", "", "Output"},
      {"-v", &verbose_, "tell about each size on stderr", "", "Output"},
      {"--help-sizes", &help_sizes_, "print the size syntax and what a size means, and exit"}};
  list.insert(list.end(), own.begin(), own.end());
  output_texts_.add_to(list);
  return list;
}

BenchOptions BenchCommand::parse(const std::vector<std::string>& argv) const {
  BenchOptions options;
  launch_texts_.parse(options);
  output_texts_.parse(options, argv);
  options.handles_signals = true;

  Request& request = options.request;
  request.collectives = parse_collectives(collectives_);
  if (!dtypes_.empty())
    request.dtypes =
        parse_list<DType>("--dtype", dtypes_, first_values<DType>(dtype_count), parse_dtype);
  if (!ops_.empty())
    request.ops = parse_list<ReduceOp::Kind>("--op", ops_, first_values<ReduceOp::Kind>(named_ops),
                                             parse_named_op);
  if (!place_.empty()) request.places = parse_places(place_);
  if (!counts_.empty()) request.counts = parse_counts(counts_);
  if (!sizes_.empty()) request.sizes = parse_sizes(sizes_);
  request.all_roots = root_ == "all";
  if (!root_.empty() && !request.all_roots)
    request.root = static_cast<int>(parse_integer("--root", root_, 0, most_ranks - 1));
  request.order = parse_choice<Order>("--order", order_);
  request.seed = static_cast<std::uint64_t>(
      parse_integer("--seed", seed_, 0, std::numeric_limits<std::int64_t>::max()));

  Timing& timing = options.timing;
  timing.mode = parse_choice<Mode>("--mode", mode_);
  timing.min_time = parse_duration("--min-time", min_time_);
  options.links = links_;
  timing.aggregate = parse_integer("--aggregate", aggregate_, 1, most_in_one_call);
  timing.overlap = overlap_;
  request.async_for = timing.overlap ? "--overlap" : timing.aggregate > 1 ? "--aggregate" : "";
  timing.iters = parse_count("--iters", iters_, 1);
  timing.warmup = parse_count("--warmup", warmup_, 0);
  timing.rank_agg = parse_choice<RankAgg>("--rank-agg", rank_agg_);
  timing.check = parse_choice<Check>("--check", check_);
  timing.seed = request.seed;
  if (!percentiles_.empty()) {
    timing.percentiles = parse_percentiles(percentiles_);
    options.percentiles_given = true;
  }
  timing.samples = parse_choice<Samples>("--samples", samples_);
  options.cold = cold_;
  options.max_total = parse_timeout("--max-total", max_total_);

  const auto keeps_samples = [](Format format) {
    return format != Format::table && format != Format::markdown;
  };
  const bool kept = keeps_samples(options.format) ||
                    std::ranges::any_of(options.files, [&](const std::string& file) {
                      return keeps_samples(format_of(file).value());
                    });
  if (timing.samples == Samples::all && !kept)
    refuse("--samples all: a table cannot show them; add -f json or --out FILE.json");
  if (quiet_ && verbose_) refuse("-q and -v exclude each other; leave one of them out");
  options.quiet = quiet_;
  options.verbose = verbose_;
  return options;
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
