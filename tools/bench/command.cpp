#include "bench/command.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "bench/output.hpp"
#include "bench/sizes.hpp"
#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t most_ranks = 4096;

/// Specified, but not in this release: refused by name rather than ignored.
constexpr std::array<std::string_view, 5> later_options{"--devices", "--groups", "--host-overhead",
                                                        "--peak", "--svg"};

/// Every value in order of its number.
template <typename T>
std::vector<T> first_values(int count) {
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<T>(i));
  return values;
}

template <typename T>
std::string names_of(const std::vector<T>& values) {
  std::string text;
  for (const T value : values) text += fmt::format(" {}", tutti::name_of(value));
  return text;
}

/// "a,b", or "all". `find` gives an optional; a value that is named twice counts once.
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
    if (!value) refuse("{} '{}': unknown; known: all{}", option, item, names_of(known));
    if (std::find(choice.values.begin(), choice.values.end(), *value) == choice.values.end())
      choice.values.push_back(*value);
  }
  return choice;
}

Choice<const Collective*> parse_collectives(const std::vector<std::string>& arguments) {
  Choice<const Collective*> choice;
  choice.given = !arguments.empty();
  if (arguments.empty()) choice.values.push_back(find_collective("all_reduce"));
  const auto add = [&choice](const Collective* collective) {
    if (std::find(choice.values.begin(), choice.values.end(), collective) == choice.values.end())
      choice.values.push_back(collective);
  };
  for (const std::string& argument : arguments) {
    for (const std::string_view item : split_list("collectives", argument)) {
      if (item == "all") {
        choice.all = true;
        for (const Collective& collective : collectives()) add(&collective);
        continue;
      }
      const Collective* found = find_collective(item);
      if (found == nullptr) {
        std::string known;
        for (const Collective& collective : collectives())
          known += fmt::format(" {}", collective.name);
        refuse("collective '{}': unknown; known: all{}", item, known);
      }
      add(found);
    }
  }
  return choice;
}

/// A count, or empty for "auto".
std::optional<std::int64_t> parse_count(std::string_view option, std::string_view text,
                                        std::int64_t low) {
  if (text == "auto") return std::nullopt;
  std::int64_t number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || number < low || number > 1'000'000)
    refuse("{} '{}': expected auto or a whole number from {} to 1000000", option, text, low);
  return number;
}

std::vector<double> parse_percentiles(std::string_view text) {
  std::vector<double> percentiles;
  for (const std::string_view item : split_list("--percentiles", text)) {
    double p = 0;
    const char* end = item.data() + item.size();
    const auto [stop, problem] = std::from_chars(item.data(), end, p, std::chars_format::fixed);
    if (problem != std::errc() || stop != end || !(p > 0 && p <= 100))
      refuse("--percentiles '{}': expected a number above 0 and at most 100", item);
    percentiles.push_back(p);
  }
  std::sort(percentiles.begin(), percentiles.end());
  percentiles.erase(std::unique(percentiles.begin(), percentiles.end()), percentiles.end());
  return percentiles;
}

Choice<Place> parse_places(std::string_view text) {
  if (text.empty()) return {{Place::out}, false, false};
  switch (parse_choice("--place", text, {"out", "in", "both"})) {
    case 0:
      return {{Place::out}, false, true};
    case 1:
      return {{Place::in}, false, true};
    default:
      return {{Place::out, Place::in}, true, true};
  }
}

Choice<Counts> parse_counts(std::string_view text) {
  if (text.empty()) return {{Counts()}, false, false};
  Choice<Counts> choice{{}, false, true};
  for (const std::string_view item : split_list("--counts", text)) {
    const Counts counts = Counts::parse(item);
    if (std::find(choice.values.begin(), choice.values.end(), counts) == choice.values.end())
      choice.values.push_back(counts);
  }
  return choice;
}

}  // namespace

void BenchCommand::define(CLI::App& app) {
  app.add_option("collectives", collectives_, "all, or some of them (default all_reduce)")
      ->type_name("COLL[,COLL...]");

  const auto text = [&app](const char* name, std::string& value, const char* help, const char* type,
                           const char* group) {
    app.add_option(name, value, help)->type_name(type)->group(group);
  };
  text("-n,--ranks", ranks_, "start so many ranks here; without it the launcher's", "N", "Launch");
  text("--nnodes", nodes_, "with -n ranks each (1)", "K", "Launch");
  text("--node-rank", node_, "this node's number (0)", "R", "Launch");
  text("--rendezvous", rendezvous_, "where node 0 listens, for several nodes", "HOST:PORT",
       "Launch");
  text("--expect-ranks", expect_ranks_, "refuse to measure another number of ranks", "N", "Launch");
  text("--store", store_, "where the launcher's ranks meet, instead of TUTTI_STORE", "URL",
       "Launch");
  text("--iface", iface_, "network interface, as the backend writes it", "NAME", "Launch");
  text("--backend", backend_, "auto, or a name from 'tutti info' (auto)", "NAME", "Launch");
  text("--device", device_, "cpu, cuda (the ranks take turns) or cuda:N; nccl: cuda (cpu)",
       "DEVICE", "Launch");
  text("--threads-per-proc", threads_, "1: ranks are processes; or N: threads of this one", "T",
       "Launch");
  text("--timeout", timeout_, "a call that takes longer ends the run (60s)", "TIME", "Launch");
  app.add_flag("--skip-unavailable", skip_unavailable_,
               "exit 77 instead of 69 when the backend cannot be had")
      ->group("Launch");

  text("-s,--sizes", sizes_, "such as 8:1G or 4K,1M; see --help-sizes", "SPEC", "Work");
  text("-d,--dtype", dtypes_, "such as f32,bf16, or all (f32)", "LIST", "Work");
  text("-o,--op", ops_, "such as sum,max, or all (sum)", "LIST", "Work");
  text("--root", root_, "a rank, or all (0)", "R", "Work");
  text("--place", place_, "out, in or both (out)", "WHERE", "Work");
  text("--counts", counts_, "blocks: even, last-short, ..., see --help-sizes (even)", "LIST",
       "Work");

  text("--mode", mode_, "throughput, or latency: a barrier before each call", "MODE", "Timing");
  text("--min-time", min_time_, "measure each size at least so long (0.5s)", "TIME", "Timing");
  text("--iters", iters_, "auto: at least 10 and --min-time", "N", "Timing");
  text("--warmup", warmup_, "calls before each size; auto: until it settles", "N", "Timing");
  text("--max-total", max_total_, "measure no further size after it (10m)", "TIME", "Timing");
  text("--order", order_, "of the sizes: size or random", "ORDER", "Timing");
  app.add_flag("--cold", cold_, "rotate over more memory than the cache holds")->group("Timing");
  text("--rank-agg", rank_agg_, "time of an iteration over ranks: max, mean, min, rank0", "HOW",
       "Timing");
  text("--percentiles", percentiles_, "of the iterations (50,90,99)", "LIST", "Timing");

  text("--check", check_, "first, all or none of the calls (first)", "WHICH", "Check");
  text("--seed", seed_, "of the data and of --order random (0)", "S", "Check");

  text("-f,--format", format_, "of stdout: table, json, ndjson, csv or md", "FORMAT", "Output");
  app.add_option("--out", files_,
                 "also write this, by its ending: .json .ndjson .csv .md; may be\n"
                 "repeated")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Output");
  text("--samples", samples_, "none, or all iterations, in the JSON", "WHICH", "Output");
  app.add_option("--env-allow", env_allow_, "record these variables too; may be repeated")
      ->type_name("GLOB")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Output");
  app.add_flag("--no-color", no_color_, "nothing is coloured in this release")->group("Output");
  auto* quiet = app.add_flag("-q", quiet_, "no progress and no notes")->group("Output");
  app.add_flag("-v", verbose_, "tell about each size on stderr")->excludes(quiet)->group("Output");
  app.add_flag("--help-sizes", help_sizes_,
               "print the size syntax and what a size means, and exit");

  for (const std::string_view name : later_options)
    app.add_option_function<std::string>(
           std::string(name),
           [name](const std::string&) { refuse("option {} is not in this release", name); })
        ->expected(0, 1)
        ->group("");  // Not in the help.
}

BenchOptions BenchCommand::parse(const std::vector<std::string>& argv) const {
  BenchOptions options;
  options.argv = argv;
  options.backend = backend_;
  options.skip_unavailable = skip_unavailable_;
  options.timeout = parse_duration("--timeout", timeout_);
  if (options.timeout.count() == 0) refuse("--timeout '{}': must be above 0", timeout_);
  if (!ranks_.empty()) options.ranks = static_cast<int>(parse_integer("-n", ranks_, 1, most_ranks));
  options.nodes = static_cast<int>(parse_integer("--nnodes", nodes_, 1, most_ranks));
  options.node = static_cast<int>(parse_integer("--node-rank", node_, 0, options.nodes - 1));
  if (options.nodes > 1 && rendezvous_.empty())
    refuse("--nnodes {} needs --rendezvous HOST:PORT, where node 0 listens", nodes_);
  options.rendezvous = rendezvous_;
  if (!device_.empty()) options.device = parse_device(device_);
  if (!threads_.empty()) {
    const auto threads = parse_integer("--threads-per-proc", threads_, 1, most_ranks);
    options.threads = options.ranks && threads == *options.ranks && threads > 1;
    if (threads != 1 && !options.threads)
      refuse("--threads-per-proc {}: in this release 1, or all ranks of -n", threads_);
  }
  if (!expect_ranks_.empty())
    options.expect_ranks =
        static_cast<int>(parse_integer("--expect-ranks", expect_ranks_, 1, most_ranks));
  options.store = store_;
  if (!iface_.empty()) {
    if (backend_.find(':') != std::string::npos)
      refuse("--iface {}: --backend {} has an argument already", iface_, backend_);
    options.backend += ":" + iface_;
  }
  options.handles_signals = true;

  Request& request = options.request;
  request.collectives = parse_collectives(collectives_);
  request.dtypes = {{DType::f32}, false, false};
  if (!dtypes_.empty())
    request.dtypes =
        parse_list<DType>("--dtype", dtypes_, first_values<DType>(dtype_count), parse_dtype);
  request.ops = {{ReduceOp::Kind::sum}, false, false};
  if (!ops_.empty())
    request.ops = parse_list<ReduceOp::Kind>(
        "--op", ops_, first_values<ReduceOp::Kind>(reduce_op_count), parse_reduce_op);
  request.places = parse_places(place_);
  request.counts = parse_counts(counts_);
  if (!sizes_.empty()) request.sizes = parse_sizes(sizes_);
  request.all_roots = root_ == "all";
  if (!root_.empty() && !request.all_roots)
    request.root = static_cast<int>(parse_integer("--root", root_, 0, most_ranks - 1));
  request.order =
      parse_choice("--order", order_, {"size", "random"}) == 0 ? Order::size : Order::random;
  request.seed = static_cast<std::uint64_t>(
      parse_integer("--seed", seed_, 0, std::numeric_limits<std::int64_t>::max()));

  Timing& timing = options.timing;
  timing.mode = parse_choice("--mode", mode_, {"throughput", "latency"}) == 0 ? Mode::throughput
                                                                              : Mode::latency;
  timing.min_time = parse_duration("--min-time", min_time_);
  timing.iters = parse_count("--iters", iters_, 1);
  timing.warmup = parse_count("--warmup", warmup_, 0);
  timing.rank_agg =
      static_cast<RankAgg>(parse_choice("--rank-agg", rank_agg_, {"max", "mean", "min", "rank0"}));
  timing.check = static_cast<Check>(parse_choice("--check", check_, {"first", "all", "none"}));
  timing.seed = request.seed;
  if (!percentiles_.empty()) {
    timing.percentiles = parse_percentiles(percentiles_);
    options.percentiles_given = true;
  }
  if (samples_ == "summary") refuse("--samples summary is not in this release; use none or all");
  timing.keep_samples = parse_choice("--samples", samples_, {"none", "all"}) == 1;
  options.cold = cold_;
  options.max_total = parse_duration("--max-total", max_total_);
  if (options.max_total.count() == 0) refuse("--max-total '{}': must be above 0", max_total_);

  options.format = static_cast<Format>(
      parse_choice("--format", format_, {"table", "json", "ndjson", "csv", "md"}));
  bool keeps_samples = options.format != Format::table && options.format != Format::markdown;
  for (const std::string& file : files_) {
    const std::optional<Format> format = format_of(file);
    if (!format) refuse("--out {}: its name must end in .json, .ndjson, .csv or .md", file);
    keeps_samples = keeps_samples || *format != Format::markdown;
  }
  options.files = files_;
  if (timing.keep_samples && !keeps_samples)
    refuse("--samples all: a table has no place for them; add -f json or --out FILE.json");
  options.env_allow = env_allow_;
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
    text += fmt::format("  {:<18}{:<9}{}\n", collective.name, collective.factor_text,
                        collective.size_is);
  text += R"(
S must be a multiple of the size of the dtype; of n times that, where it is cut
into blocks (S/n) that are all alike. docs/benchmarking.md derives the factors.

)";
  text += counts_syntax;
  text += R"(
With uneven blocks b_r the factors are

)";
  for (const Collective& collective : collectives())
    if (collective.divides())
      text += fmt::format("  {:<18}{}\n", collective.name, collective.uneven_factor_text);
  text += R"(
and all_to_all sends block r of every rank's S to rank r.
)";
  return text;
}

}  // namespace tutti::tool
