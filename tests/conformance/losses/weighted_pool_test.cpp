#include <algorithm>
#include <cmath>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/loss_rows.hpp"
#include "conformance/losses/pool_calls.hpp"

// Weights of the rows in ranking losses, for any split over the ranks.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::ClassStatus;
using losses::PoolOptions;

TEST(WeightedPoolAlone, DiagnosticsAndSamplesDoNotDependOnWeights) {
  auto rows = make_pool_rows(200, 1, 8);
  const auto diagnostics_of = [&](const PoolRows& of) {
    losses::PAucAtBudget loss({.beta = 0.5, .pool = {.max_rows = 90}});
    call_pool(loss, nullptr, of);
    return loss.diagnostics().at(0);
  };
  const auto want = diagnostics_of(rows);
  add_weights(rows, 3);
  const auto got = diagnostics_of(rows);
  EXPECT_EQ(got.t_alpha, want.t_alpha);
  EXPECT_EQ(got.t_beta, want.t_beta);
  EXPECT_EQ(got.tau_eff, want.tau_eff);
  EXPECT_EQ(got.band_negatives, want.band_negatives);
  EXPECT_EQ(got.variance, want.variance);
  EXPECT_GT(want.variance, 0);
}

/// Calls with and without weights; at the end the rows with weights have left a queue of `queue`.
PoolSequence weighted_sequence(std::int64_t classes, std::int64_t queue, bool large) {
  auto sequence = pool_sequence(classes, queue, large);
  for (const std::size_t call : {0U, 2U, 3U}) sequence.calls[call].weighted = true;
  sequence.calls.back().weighted = true;
  sequence.calls.push_back({.rows = large ? 300 : 7});
  sequence.calls.push_back({.rows = 3 * queue});
  sequence.calls.push_back({.rows = large ? 300 : 7});
  return sequence;
}

class WeightedPoolOf : public testing::TestWithParam<World> {
 protected:
  void expect_sequence(const PoolSequence& sequence, const RankingKind& kind,
                       const PoolOptions& pool, std::span<const PoolOutcome> want) const {
    SCOPED_TRACE(kind.name + (sequence.large ? ", large" : ", small"));
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto loss = kind.make(sequence.classes, pool);
      expect_calls(*loss, group, sequence, want, 0, sequence.calls.size());
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, WeightedPoolOf, testing::ValuesIn(worlds()), CaseName());

TEST_P(WeightedPoolOf, AnySplitIsOneProcessWithTheRowsOfTheQueue) {
  for (const auto& kind : ranking_kinds()) {
    auto sequence = weighted_sequence(3, 20, false);
    sequence.in_float = kind.name == "recall_at_quantile";
    expect_sequence(sequence, kind, {.queue = 20}, by_list_of_rows(sequence, kind, 20));
  }
  const auto live = weighted_sequence(1, 20, false);
  expect_sequence(live, live_kind(), {.queue = 20}, alone(live, live_kind(), {.queue = 20}));
  for (const auto& kind : ranking_kinds()) {
    const auto large = weighted_sequence(1, 700, true);
    expect_sequence(large, kind, {.queue = 700}, by_list_of_rows(large, kind, 700));
  }
}

TEST_P(WeightedPoolOf, ALoadedQueueHasTheWeightsOnAnyNumberOfRanks) {
  for (const auto& kind : {smooth_ap_kind(), trapezoid_kind()}) {
    const auto sequence = weighted_sequence(3, 20, false);
    const PoolOptions pool{.queue = 20};
    const auto want = alone(sequence, kind, pool);
    PerRank<std::string> saved(GetParam().size);
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto loss = kind.make(3, pool);
      expect_calls(*loss, group, sequence, want, 0, 4);
      saved[group.rank()] = loss->save(group);
    });
    for (const auto& state : saved.all()) ASSERT_EQ(state, saved[0]);
    for (const int size : {GetParam().size, GetParam().size % 4 + 1})
      on_ranks({GetParam().backend, size, GetParam().checked}, [&](ProcessGroup& group) {
        const auto loss = kind.make(3, pool);
        loss->load(group, saved[0]);
        EXPECT_EQ(loss->save(group), saved[0]);
        loss->set_group(group);
        expect_calls(*loss, group, sequence, want, 4, sequence.calls.size());
      });
  }
}

// Each weight is finite, but not their sum.
TEST_P(WeightedPoolOf, ASumOfWeightsThatIsNotFiniteIsRefused) {
  for (const auto& kind : ranking_kinds())
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto loss = kind.make(1, {.queue = 9});
      auto huge = make_pool_rows(8, 1, 3);
      huge.weights = std::vector<double>(8, 1e308);
      std::ranges::fill(huge.targets, 1);
      expect_error(Errc::invalid_argument, {"sum of the weights is inf"},
                   [&] { call_pool(*loss, &group, huge); });
      EXPECT_EQ(loss->queued(), 0);
    });
}

TEST_P(WeightedPoolOf, WeightsAreSentOnlyWhileThereAreSome) {
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    const std::int64_t each = 8000;  // More than is inlined.
    losses::SmoothAp loss({.pool = {.queue = 3 * each * group.size()}});
    const auto bytes_of = [&](bool weighted, std::int64_t count) {
      auto rows = make_pool_rows(count, 1, 3);
      std::ranges::fill(rows.targets, 0);  // No anchors.
      if (weighted) add_weights(rows, 3);
      const auto before = group.trace().size();
      call_pool(loss, &group, rows, true);
      std::int64_t bytes = 0;
      const auto trace = group.trace();
      for (std::size_t i = before; i < trace.size(); ++i)
        if (trace[i].operation == Operation::all_gather) bytes += trace[i].bytes;
      return bytes;
    };
    EXPECT_EQ(bytes_of(false, each), each * 12);
    EXPECT_EQ(bytes_of(false, each), 2 * each * 12);
    EXPECT_EQ(bytes_of(true, each), 3 * each * 20);
    EXPECT_EQ(bytes_of(false, 2 * each), 5 * each * 20);  // The queue has weights.
    EXPECT_EQ(bytes_of(false, each), 4 * each * 20);
    EXPECT_EQ(bytes_of(false, each), 4 * each * 12);
  });
}

TEST(WeightedPoolAlone, ClassesSayWhyTheyAreNotValid) {
  using Status = ClassStatus;
  const std::vector<std::int64_t> targets{0, 1, 0, 1};
  const std::vector<double> logits{1, 2, 3, 4};
  std::vector<double> weights{5, 0, 5, 0};  // Those of negatives do not count.
  Batch batch{logits, targets};
  const auto expect = [&](losses::RankingLoss&& loss, Status want) {
    const auto got = loss(batch);
    EXPECT_EQ(got.status, std::vector{want}) << loss.temperature();
    EXPECT_EQ(std::isnan(got.per_class[0]), want != Status::valid);
    if (want != Status::valid) {
      EXPECT_EQ(got.loss, 0);
      EXPECT_EQ(values_of(got.grad), std::vector<double>(logits.size()));
    }
  };
  using losses::PAucAtBudget;
  using losses::SmoothAp;
  using Options = losses::PAucAtBudgetOptions;
  const auto recall = [] { return losses::RecallAtQuantile({.quantile = 0.5}); };
  const auto p_auc = [](Options::Positives positives = Options::Positives::pool) {
    return PAucAtBudget({.beta = 0.5,
                         .positives = positives,
                         .interpolation = losses::Interpolation::linear,
                         .pool = {.gather = false}});
  };
  expect(SmoothAp(), Status::valid);
  expect(recall(), Status::valid);
  expect(p_auc(), Status::valid);
  batch.weight = weights;
  expect(SmoothAp(), Status::no_weight);
  expect(recall(), Status::no_weight);
  expect(p_auc(), Status::no_weight);
  weights[3] = 1e-3;
  expect(SmoothAp(), Status::valid);
  expect(p_auc(), Status::valid);
  batch.pool_rows = 3;  // Their positive has no weight.
  expect(p_auc(), Status::valid);
  expect(p_auc(Options::Positives::live), Status::no_weight);
  batch.pool_rows = 1;
  expect(p_auc(Options::Positives::live), Status::no_live_positives);
  const std::vector<std::uint8_t> iid{0, 1, 0, 1};
  batch.iid = iid;
  expect(p_auc(), Status::no_negatives);
  const std::vector<std::int64_t> none(4, 0);
  const std::vector<std::int64_t> all(4, 1);
  batch = {logits, none};
  expect(SmoothAp(), Status::no_positives);
  expect(recall(), Status::no_positives);
  expect(p_auc(), Status::no_positives);
  batch = {logits, all};
  expect(SmoothAp(), Status::no_negatives);
  expect(recall(), Status::valid);
  expect(p_auc(), Status::no_negatives);
  const std::vector<double> tied(4, 0.5);
  batch = {tied, targets};
  expect(p_auc(), Status::no_spread);
  // Of all rows, the band has only positives.
  const std::vector<std::int64_t> high{0, 0, 1, 1};
  batch = {logits, high};
  expect(PAucAtBudget({.beta = 0.4,
                       .surrogate = Options::Surrogate::pairwise,
                       .basis = Options::Basis::population,
                       .interpolation = losses::Interpolation::linear}),
         Status::empty_band);
}

}  // namespace
}  // namespace tutti::test
