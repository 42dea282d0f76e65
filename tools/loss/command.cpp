#include "loss/command.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t most_rows = 1'000'000'000;
constexpr std::int64_t most_classes = 100'000;
constexpr std::int64_t most_calls = 1000;
constexpr std::int64_t most_threads = 1024;
constexpr std::int64_t most_rounds = 10'000;

/// With --queue, the default of --calls fills the queue and wraps around in it, in at most so many
/// calls.
constexpr std::int64_t most_calls_for_queue = 10;

/// Tolerance for rounding: only the order of sums differs between one process and many.
constexpr double tolerance_f64 = 1e-12;
constexpr double tolerance_f32 = 1e-5;

double parse_fraction(std::string_view option, std::string_view text) {
  return parse_number(option, text, "above 0 and below 1", [](double x) { return x > 0 && x < 1; });
}

std::vector<LossKind> all_kinds() {
  std::vector<LossKind> kinds;
  for (std::size_t i = 0; i < names_of<LossKind>.size(); ++i)
    kinds.push_back(static_cast<LossKind>(i));
  return kinds;
}

/// Duplicates count once.
std::vector<LossKind> parse_kinds(std::string_view text) {
  std::vector<LossKind> kinds;
  for (const std::string_view item : split_list("--losses", text)) {
    const auto* found = std::ranges::find(names_of<LossKind>, item);
    if (found == names_of<LossKind>.end())
      refuse("--losses '{}': unknown; give all alone, or names from: {}", item,
             fmt::join(names_of<LossKind>, " "));
    const auto kind = static_cast<LossKind>(found - names_of<LossKind>.begin());
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace

OptionList LossCommand::options() {
  OptionList list{
      {"-l,--losses", &losses_, "all, or some of them (all)", "LOSS[,LOSS...]", "Work"},
      {"--rows", &rows_, "of a call, all ranks together (10000)", "N", "Work"},
      {"--classes", &classes_, "1 is binary, more are one against the rest (1)", "C", "Work"},
      {"--pos-rate", &positive_rate_, "part of the rows that is positive (0.05)", "P", "Work"},
      {"--ignore-rate", &ignore_rate_, "part of the rows that is ignored (0)", "P", "Work"},
      {"-d,--dtype", &dtype_, "f32 or f64 (f32)", "TYPE", "Work"},
      {"--seed", &seed_, "of the rows (0)", "S", "Work"},

      {"--temperature", &temperature_, "of the ranking losses; each has its own", "T", "Loss"},
      {"--queue", &queue_, "of the ranking losses: rows of earlier calls (0)", "Q", "Loss"},
      {"--quantile", &quantile_, "of recall_at_quantile (0.005)", "Q", "Loss"},
      {"--budget", &budget_, "of p_auc_at_budget: false positive rate (0.005)", "B", "Loss"},
      {"--surrogate", &surrogate_, "of p_auc_at_budget: trapezoid or pairwise", "NAME", "Loss"},
      {"--threads", &threads_, "of smooth_ap: at work on each rank (1)", "N", "Loss"},
      {"--gamma", &gamma_, "of the focal losses (2)", "G", "Loss"},

      {"--split", &split_, "of the rows: even, uneven or one (uneven)", "HOW", "Check"},
      {"--calls", &calls_, "to compare, in a row (1; with --queue until it is full)", "N", "Check"},
      {"--tolerance", &tolerance_, "relative (f32: 1e-5, f64: 1e-12)", "X", "Check"},
      {"--rounds", &rounds_, "calls to time behind them (5)", "N", "Timing"}};
  rank_texts_.add_to(list, "so many threads; without it the launcher's ranks", "-b,--backend");
  output_texts_.add_to(list);
  return list;
}

LossProblem LossCommand::parse_problem() const {
  LossProblem problem;
  problem.rows = parse_integer("--rows", rows_, 1, most_rows);
  problem.classes = parse_integer("--classes", classes_, 1, most_classes);
  problem.positive_rate = parse_fraction("--pos-rate", positive_rate_);
  if (!ignore_rate_.empty())
    problem.ignore_rate = parse_number("--ignore-rate", ignore_rate_, "from 0, below 1",
                                       [](double x) { return x >= 0 && x < 1; });
  constexpr Names<2> dtypes{"f32", "f64"};
  problem.dtype = parse_choice("--dtype", dtype_, dtypes) == 0 ? DType::f32 : DType::f64;
  problem.seed = static_cast<std::uint64_t>(
      parse_integer("--seed", seed_, 0, std::numeric_limits<std::int64_t>::max()));
  if (!temperature_.empty())
    problem.temperature =
        parse_number("--temperature", temperature_, "above 0", [](double x) { return x > 0; });
  if (!quantile_.empty()) problem.quantile = parse_fraction("--quantile", quantile_);
  if (!budget_.empty())
    problem.budget = parse_number("--budget", budget_, "above 0 and at most 1",
                                  [](double x) { return x > 0 && x <= 1; });
  if (!surrogate_.empty()) problem.surrogate = parse_choice<Surrogate>("--surrogate", surrogate_);
  if (!gamma_.empty())
    problem.gamma = parse_number("--gamma", gamma_, "from 0", [](double x) { return x >= 0; });
  if (!queue_.empty()) problem.queue = parse_integer("--queue", queue_, 0, most_rows);
  if (!threads_.empty())
    problem.threads = static_cast<int>(parse_integer("--threads", threads_, 1, most_threads));
  return problem;
}

LossOptions LossCommand::parse(const std::vector<std::string>& argv) const {
  LossOptions options;
  LossPlan& plan = options.plan;
  plan.problem = parse_problem();
  const bool all = losses_.empty() || losses_ == "all";
  options.kinds = all ? all_kinds() : parse_kinds(losses_);

  // Refuses options that none of the losses uses.
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

  rank_texts_.parse(options);
  output_texts_.parse(options, argv);
  options.split = parse_choice<Split>("--split", split_);
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
  return options;
}

}  // namespace tutti::tool
