#include "loss/command.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t most_ranks = 4096;
constexpr std::int64_t most_rows = 1'000'000'000;
constexpr std::int64_t most_classes = 100'000;
constexpr std::int64_t most_calls = 1000;
constexpr std::int64_t most_threads = 1024;
constexpr std::int64_t most_rounds = 10'000;

/// How many calls show a queue that has filled up and wrapped around, as far as that is cheap.
constexpr std::int64_t most_calls_for_queue = 10;

/// Rounding: numbers of one process and of many are the same but for the order of sums.
constexpr double tolerance_f64 = 1e-12;
constexpr double tolerance_f32 = 1e-5;

/// A number for which `fits` holds; anything else is refused.
template <typename Fits>
double parse_number(std::string_view option, std::string_view text, std::string_view expected,
                    Fits fits) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || !std::isfinite(number) || !fits(number))
    refuse("{} '{}': expected a number {}", option, text, expected);
  return number;
}

double parse_fraction(std::string_view option, std::string_view text) {
  return parse_number(option, text, "above 0 and below 1", [](double x) { return x > 0 && x < 1; });
}

std::vector<LossKind> all_kinds() {
  std::vector<LossKind> kinds;
  for (int i = 0; i < loss_kind_count; ++i) kinds.push_back(static_cast<LossKind>(i));
  return kinds;
}

/// One that is named twice counts once.
std::vector<LossKind> parse_kinds(std::string_view text) {
  std::vector<LossKind> kinds;
  for (const std::string_view item : split_list("--losses", text)) {
    const std::optional<LossKind> kind = parse_loss_kind(item);
    if (!kind) {
      std::string known;
      for (const LossKind each : all_kinds()) known += fmt::format(" {}", name_of(each));
      refuse("--losses '{}': unknown; known: all{}", item, known);
    }
    if (std::ranges::find(kinds, *kind) == kinds.end()) kinds.push_back(*kind);
  }
  return kinds;
}

}  // namespace

void LossCommand::define(CLI::App& app) {
  const auto text = [&app](const char* name, std::string& value, const char* help, const char* type,
                           const char* group) {
    app.add_option(name, value, help)->type_name(type)->group(group);
  };
  text("-l,--losses", losses_, "all, or some of them (all)", "LOSS[,LOSS...]", "Work");
  text("--rows", rows_, "of a call, all ranks together (10000)", "N", "Work");
  text("--classes", classes_, "1 is binary, more are one against the rest (1)", "C", "Work");
  text("--pos-rate", positive_rate_, "part of the rows that is positive (0.05)", "P", "Work");
  text("--ignore-rate", ignore_rate_, "part of the rows that is ignored (0)", "P", "Work");
  text("-d,--dtype", dtype_, "f32 or f64 (f32)", "TYPE", "Work");
  text("--seed", seed_, "of the rows (0)", "S", "Work");

  text("--temperature", temperature_, "of the ranking losses; each has its own", "T", "Loss");
  text("--queue", queue_, "of the ranking losses: rows of earlier calls (0)", "Q", "Loss");
  text("--quantile", quantile_, "of recall_at_quantile (0.005)", "Q", "Loss");
  text("--budget", budget_, "of p_auc_at_budget: false positive rate (0.005)", "B", "Loss");
  text("--surrogate", surrogate_, "of p_auc_at_budget: trapezoid or pairwise", "NAME", "Loss");
  text("--threads", threads_, "of smooth_ap: at work on each rank (1)", "N", "Loss");
  text("--gamma", gamma_, "of the focal losses (2)", "G", "Loss");

  text("-n,--ranks", ranks_, "so many threads; without it the launcher's ranks", "N", "Launch");
  text("-b,--backend", backend_, "auto, or a name from 'tutti info' (auto)", "NAME", "Launch");
  text("--store", store_, "where the launcher's ranks meet, instead of TUTTI_STORE", "URL",
       "Launch");
  text("--timeout", timeout_, "a call that takes longer ends the run (60s)", "TIME", "Launch");

  text("--split", split_, "of the rows: even, uneven or one (uneven)", "HOW", "Check");
  text("--calls", calls_, "to compare, in a row (1; with --queue until it is full)", "N", "Check");
  text("--tolerance", tolerance_, "relative (f32: 1e-5, f64: 1e-12)", "X", "Check");
  text("--rounds", rounds_, "calls to time behind them (5)", "N", "Timing");
  text("-f,--format", format_, "table or json", "FORMAT", "Output");
}

LossProblem LossCommand::parse_problem() const {
  LossProblem problem;
  problem.rows = parse_integer("--rows", rows_, 1, most_rows);
  problem.classes = parse_integer("--classes", classes_, 1, most_classes);
  problem.positive_rate = parse_fraction("--pos-rate", positive_rate_);
  if (!ignore_rate_.empty())
    problem.ignore_rate = parse_number("--ignore-rate", ignore_rate_, "from 0, below 1",
                                       [](double x) { return x >= 0 && x < 1; });
  problem.dtype = parse_choice("--dtype", dtype_, {"f32", "f64"}) == 0 ? DType::f32 : DType::f64;
  problem.seed = static_cast<std::uint64_t>(
      parse_integer("--seed", seed_, 0, std::numeric_limits<std::int64_t>::max()));
  if (!temperature_.empty())
    problem.temperature =
        parse_number("--temperature", temperature_, "above 0", [](double x) { return x > 0; });
  if (!quantile_.empty()) problem.quantile = parse_fraction("--quantile", quantile_);
  if (!budget_.empty())
    problem.budget = parse_number("--budget", budget_, "above 0 and at most 1",
                                  [](double x) { return x > 0 && x <= 1; });
  problem.pairwise = !surrogate_.empty() &&
                     parse_choice("--surrogate", surrogate_, {"trapezoid", "pairwise"}) == 1;
  if (!gamma_.empty())
    problem.gamma = parse_number("--gamma", gamma_, "from 0", [](double x) { return x >= 0; });
  if (!queue_.empty()) problem.queue = parse_integer("--queue", queue_, 0, most_rows);
  if (!threads_.empty())
    problem.threads = static_cast<int>(parse_integer("--threads", threads_, 1, most_threads));
  return problem;
}

LossOptions LossCommand::parse(const std::vector<std::string>& argv) const {
  LossOptions options;
  options.argv = argv;
  LossPlan& plan = options.plan;
  plan.problem = parse_problem();
  const bool all = losses_.empty() || losses_ == "all";
  options.kinds = all ? all_kinds() : parse_kinds(losses_);

  // Options that none of the losses uses are a misunderstanding.
  const auto needs = [&](std::string_view option, const std::string& text, std::string_view whose,
                         auto use) {
    if (!text.empty() && std::ranges::none_of(options.kinds, use))
      refuse("{} {}: only for {}, not chosen here; leave it out", option, text, whose);
  };
  const auto is = [](LossKind kind) { return [kind](LossKind other) { return other == kind; }; };
  needs("--temperature", temperature_, "ranking losses", is_ranking);
  needs("--queue", queue_, "ranking losses", is_ranking);
  needs("--quantile", quantile_, "the loss recall_at_quantile", is(LossKind::recall_at_quantile));
  needs("--budget", budget_, "the loss p_auc_at_budget", is(LossKind::p_auc_at_budget));
  needs("--surrogate", surrogate_, "the loss p_auc_at_budget", is(LossKind::p_auc_at_budget));
  needs("--threads", threads_, "the loss smooth_ap", is(LossKind::smooth_ap));
  needs("--gamma", gamma_, "focal losses", is_focal);
  needs("--ignore-rate", ignore_rate_, "losses other than sigmoid_focal",
        [](LossKind kind) { return kind != LossKind::sigmoid_focal; });
  if (plan.problem.classes == 1 && std::erase(options.kinds, LossKind::softmax_focal) != 0) {
    if (!all) refuse("--classes 1: softmax_focal needs two classes or more");
    options.notes.emplace_back("left out softmax_focal: it needs --classes 2 or more");
  }

  if (!ranks_.empty()) options.ranks = static_cast<int>(parse_integer("-n", ranks_, 1, most_ranks));
  options.backend = backend_;
  options.store = store_;
  options.timeout = parse_duration("--timeout", timeout_);
  if (options.timeout.count() == 0) refuse("--timeout '{}': must be above 0", timeout_);

  options.split = static_cast<Split>(parse_choice("--split", split_, {"even", "uneven", "one"}));
  const LossProblem& problem = plan.problem;
  if (!calls_.empty())
    plan.calls = parse_integer("--calls", calls_, 1, most_calls);
  else if (problem.queue > 0)
    plan.calls = std::min(problem.queue / problem.rows + 3, most_calls_for_queue);
  plan.rounds = parse_integer("--rounds", rounds_, 1, most_rounds);
  plan.tolerance = problem.dtype == DType::f64 ? tolerance_f64 : tolerance_f32;
  if (!tolerance_.empty())
    plan.tolerance =
        parse_number("--tolerance", tolerance_, "from 0", [](double x) { return x >= 0; });
  options.json = parse_choice("--format", format_, {"table", "json"}) == 1;
  return options;
}

}  // namespace tutti::tool
