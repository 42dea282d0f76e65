#include <algorithm>
#include <cmath>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>

#include "conformance/losses/loss_rows.hpp"
#include "conformance/losses/pool_calls.hpp"

// Thresholds by weight (Budget::weight): against the definition, and for any split over the ranks.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::Budget;
using losses::ClassStatus;
using losses::PoolOptions;

RankingKind recall_by_weight() {
  return {"recall by weight", [](std::int64_t classes, const PoolOptions& pool) {
            return std::make_unique<losses::RecallAtQuantile>(
                losses::RecallAtQuantileOptions{.classes = classes,
                                                .quantile = 0.1,
                                                .temperature = 0.2,
                                                .budget = Budget::weight,
                                                .pool = pool});
          }};
}

RankingKind p_auc_by_weight(bool pairwise) {
  using Options = losses::PAucAtBudgetOptions;
  return {
      pairwise ? "pairwise by weight" : "trapezoid by weight",
      [pairwise](std::int64_t classes, const PoolOptions& pool) {
        return std::make_unique<losses::PAucAtBudget>(losses::PAucAtBudgetOptions{
            .classes = classes,
            .alpha = 0.05,
            .beta = 0.6,
            .surrogate = pairwise ? Options::Surrogate::pairwise : Options::Surrogate::trapezoid,
            .basis = pairwise ? Options::Basis::population : Options::Basis::fpr,
            .budget = Budget::weight,
            .pool = pool});
      }};
}

/// Rows of one class that are not ignored.
struct BudgetRow {
  double score, weight;
  bool positive, iid;
};

std::vector<BudgetRow> budget_rows(const PoolRows& rows) {
  std::vector<BudgetRow> all;
  for (std::size_t i = 0; i < rows.targets.size(); ++i)
    if (rows.targets[i] != losses::default_ignore_index)
      all.push_back({rows.logits[i], rows.weights->at(i), rows.targets[i] == 1, rows.iid[i] != 0});
  return all;
}

/// The lowest score at which the weight from below is at least q of all.
template <typename Take>
double threshold_of(std::vector<BudgetRow> rows, double q, const Take& take) {
  std::erase_if(rows, [&](const auto& row) { return !take(row); });
  std::ranges::sort(rows, {}, &BudgetRow::score);
  double all = 0;
  for (const auto& row : rows) all += row.weight;
  double sum = 0;
  for (const auto& row : rows) {
    sum += row.weight;
    if (row.weight > 0 && sum >= q * all) return row.score;
  }
  return NAN;
}

/// The weighted mean over positives of σ((s - threshold) / temperature).
double budget_recall(const std::vector<BudgetRow>& rows, double threshold, double temperature) {
  double sum = 0;
  double mass = 0;
  for (const auto& row : rows) {
    if (!row.positive) continue;
    sum += row.weight / (1 + std::exp((threshold - row.score) / temperature));
    mass += row.weight;
  }
  return sum / mass;
}

/// Scores without ties, and weights whose sums are exact.
PoolRows budget_pool(std::int64_t count, unsigned seed) {
  auto rows = make_pool_rows(count, 1, seed);
  add_weights(rows, seed);
  for (auto& weight : *rows.weights) weight = std::round(weight * 8) / 8;
  for (std::size_t i = 0; i < rows.logits.size(); ++i)
    rows.logits[i] += std::ldexp(static_cast<double>(i), -12);
  return rows;
}

TEST(WeightedBudgetAlone, ThresholdsAreThoseOfTheDefinition) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    const auto rows = budget_pool(90, seed);
    const auto all = budget_rows(rows);
    const auto any = [](const auto&) { return true; };
    EXPECT_NEAR(call_pool(*recall_by_weight().make(1, {}), nullptr, rows).loss,
                1 - budget_recall(all, threshold_of(all, 0.9, any), 0.2), 1e-13);
    const auto negative = [](const BudgetRow& row) { return row.iid && !row.positive; };
    const double tau =
        0.1 * (threshold_of(all, 0.75, negative) - threshold_of(all, 0.25, negative));
    double area = 0;
    for (const double f : {0.05, 0.6})
      area += budget_recall(all, threshold_of(all, 1 - f, negative), tau) / 2;
    EXPECT_NEAR(call_pool(*p_auc_by_weight(false).make(1, {}), nullptr, rows).loss, 1 - area,
                1e-13);
    losses::PAucAtBudget pairwise({.beta = 0.3,
                                   .basis = losses::PAucAtBudgetOptions::Basis::population,
                                   .budget = Budget::weight});
    call_pool(pairwise, nullptr, rows);
    const auto iid = [](const BudgetRow& row) { return row.iid; };
    EXPECT_EQ(pairwise.diagnostics()[0].t_alpha, threshold_of(all, 1, iid));
    EXPECT_EQ(pairwise.diagnostics()[0].t_beta, threshold_of(all, 0.7, iid));
  }
}

class WeightedBudgetOf : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WeightedBudgetOf, testing::ValuesIn(worlds()), CaseName());

TEST_P(WeightedBudgetOf, AnySplitIsOneProcess) {
  for (const bool large : {false, true})
    for (const auto& kind : {recall_by_weight(), p_auc_by_weight(false), p_auc_by_weight(true)}) {
      const std::int64_t queue = large ? 700 : 30;
      auto sequence = pool_sequence(large ? 1 : 3, queue, large);
      for (std::size_t i = 0; i < sequence.calls.size(); ++i)
        sequence.calls[i].weighted = i % 3 != 1;
      sequence.in_float = large;
      const PoolOptions pool{.queue = queue, .max_rows = large ? 1600 : 0};
      const auto want = alone(sequence, kind, pool);
      on_ranks(GetParam(), [&](ProcessGroup& group) {
        SCOPED_TRACE(kind.name + (large ? ", large" : ", small"));
        const auto loss = kind.make(sequence.classes, pool);
        expect_calls(*loss, group, sequence, want, 0, sequence.calls.size());
      });
    }
}

TEST_P(WeightedBudgetOf, RanksWithAnotherBudgetAreRefused) {
  if (GetParam().size == 1) return;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto rows = budget_pool(20, 2);
    const auto budget = group.rank() == 0 ? Budget::weight : Budget::rows;
    losses::RecallAtQuantile recall({.budget = budget});
    losses::PAucAtBudget p_auc({.budget = budget});
    for (losses::RankingLoss* loss :
         {static_cast<losses::RankingLoss*>(&recall), static_cast<losses::RankingLoss*>(&p_auc)})
      expect_error(Errc::mismatch, {"budget weight", "rank 0: "},
                   [&] { call_pool(*loss, &group, rows); });
  });
}

TEST(WeightedBudgetAlone, WithoutWeightOfTheReferenceAClassIsNotValid) {
  auto rows = budget_pool(40, 3);
  for (std::size_t i = 0; i < rows.targets.size(); ++i)
    rows.weights->at(i) = rows.targets[i] == 1 ? 1 : 0;
  EXPECT_EQ(call_pool(*p_auc_by_weight(false).make(1, {}), nullptr, rows).status,
            std::vector{ClassStatus::no_weight});
  EXPECT_EQ(call_pool(*recall_by_weight().make(1, {}), nullptr, rows).status,
            std::vector{ClassStatus::valid});
}

// The levels of the knots are rounded to the scores' dtype where rows are counted, as in torch.
TEST(WeightedBudgetAlone, KnotsOfFloatScoresAreThoseOfDoubles) {
  PoolRows rows;
  for (int i = 0; i < 1001; ++i) {
    rows.logits.push_back(i);
    rows.targets.push_back(i == 985 ? 1 : 0);
    rows.iid.push_back(1);
  }
  rows.weights.emplace(rows.targets.size(), 1.0);
  losses::PAucAtBudget in_float({.beta = 0.1, .knots = 11, .budget = Budget::weight});
  losses::PAucAtBudget in_double({.beta = 0.1, .knots = 11, .budget = Budget::weight});
  const auto want = call_pool(in_double, nullptr, rows);
  EXPECT_NEAR(call_pool(in_float, nullptr, rows, true).loss, want.loss, 1e-6);
}

TEST(WeightedBudgetAlone, AnInterpolationIsRefused) {
  for (const auto how : {losses::Interpolation::linear, losses::Interpolation::nearest}) {
    expect_error(
        Errc::invalid_argument, {"recall_at_quantile: budget is weight", "use higher"},
        [&] { losses::RecallAtQuantile({.interpolation = how, .budget = Budget::weight}); });
    expect_error(Errc::invalid_argument, {"p_auc_at_budget: budget is weight"},
                 [&] { losses::PAucAtBudget({.interpolation = how, .budget = Budget::weight}); });
  }
}

}  // namespace
}  // namespace tutti::test
