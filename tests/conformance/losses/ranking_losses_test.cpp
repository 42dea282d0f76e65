#include <cmath>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/loss_rows.hpp"
#include "conformance/losses/pool_calls.hpp"

// Tests of single ranking losses. every_loss_test.cpp tests what all losses have;
// weighted_definition_test.cpp and tests/unit/losses/ranking_reference_test.cpp have the numbers.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::Interpolation;
using losses::PAucAtBudget;
using losses::RecallAtQuantile;
using losses::SmoothAp;
using Options = losses::PAucAtBudgetOptions;

TEST(SmoothApAlone, NoNumberDependsOnTheThreads) {
  const auto rows = make_pool_rows(reduced() ? 1000 : 9000, 3, 1);
  const Batch batch{view(std::span(rows.logits), {rows.count(), 3}), rows.targets};
  const auto want = SmoothAp({.classes = 3})(batch);
  for (const int threads : {2, 3, 7}) {
    const auto got = SmoothAp({.classes = 3, .threads = threads})(batch);
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(values_of(got.grad), values_of(want.grad));
  }
}

TEST(SmoothApAlone, OptionsOutOfRangeAreRefused) {
  expect_error(Errc::invalid_argument, {"classes is 0"}, [] { SmoothAp({.classes = 0}); });
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL})
    expect_error(Errc::invalid_argument, {"temperature"}, [&] { SmoothAp({.temperature = bad}); });
  expect_error(Errc::invalid_argument, {"threads is 0"}, [] { SmoothAp({.threads = 0}); });
}

TEST(SmoothApAlone, OtherTargetsOfOneClassArePositive) {
  const std::vector<std::int64_t> targets{1, -1, 0, 2};
  const std::vector<std::int64_t> positive{1, 1, 0, 1};
  const std::vector<float> logits{1, 2, 3, 4};
  expect_error(Errc::invalid_argument, {"targets[1] is -1", "0 to 1"}, [&] {
    SmoothAp()({logits, targets});
  });
  EXPECT_EQ(SmoothAp({.pool = {.other_targets = true}})({logits, targets}).loss,
            SmoothAp()({logits, positive}).loss);
}

TEST(RecallAlone, OptionsOutOfRangeAreRefused) {
  for (const double bad : {0.0, 1.0, -0.5, std::nan("")})
    expect_error(Errc::invalid_argument, {"quantile is"},
                 [&] { RecallAtQuantile({.quantile = bad}); });
  expect_error(Errc::invalid_argument, {"temperature is 0"},
               [] { RecallAtQuantile({.temperature = 0}); });
  expect_error(Errc::invalid_argument, {"classes is -1"},
               [] { RecallAtQuantile({.classes = -1}); });
}

Batch batch_of(const PoolRows& rows) {
  return {view(std::span(rows.logits), {rows.count(), rows.classes}), rows.targets, rows.iid};
}

class PAucOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, PAucOfRanks, testing::ValuesIn(worlds()), CaseName());

TEST_P(PAucOfRanks, DiagnosticsAreThoseOfOneProcess) {
  const auto rows = make_pool_rows(80, 3, 2);
  for (const auto surrogate : {Options::Surrogate::trapezoid, Options::Surrogate::pairwise}) {
    const Options options{.classes = 3,
                          .alpha = 0.05,
                          .beta = 0.4,
                          .surrogate = surrogate,
                          .interpolation = Interpolation::linear};
    PAucAtBudget alone(options);
    const auto status = alone(batch_of(rows)).status;
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      for (const Layout& split : splits_of(80, group.size())) {
        PAucAtBudget loss(options);
        loss(group, batch_of(rows.part(offset(split, group.rank()), split[index(group.rank())])));
        for (std::size_t c = 0; c < status.size(); ++c) {
          if (status[c] != losses::ClassStatus::valid) continue;
          const auto& got = loss.diagnostics().at(c);
          const auto& want = alone.diagnostics().at(c);
          EXPECT_EQ(got.t_alpha, want.t_alpha);
          EXPECT_EQ(got.t_beta, want.t_beta);
          EXPECT_EQ(got.tau_eff, want.tau_eff);
          EXPECT_EQ(got.band_negatives, want.band_negatives);
          EXPECT_NEAR(got.variance, want.variance, 1e-12);
        }
      }
    });
  }
}

TEST_P(PAucOfRanks, AMaskOfAnotherLengthOnOneRankIsAnErrorOnAll) {
  const auto rows = make_pool_rows(12, 3, 2);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    auto batch = batch_of(rows);
    batch.iid = std::span(rows.iid).first(last ? 11 : 12);
    PAucAtBudget loss({.classes = 3, .beta = 0.5});
    expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                 {"p_auc_at_budget", "iid is u8 [11]"}, [&] { loss(group, batch); });
    loss(group, batch_of(rows));
  });
}

TEST(PAucAlone, DiagnosticsAreThoseOfTheLastCallThatSucceeded) {
  const auto few = make_pool_rows(40, 3, 2);
  const auto many = make_pool_rows(80, 3, 3);
  const Options options{.classes = 3, .beta = 0.5};
  PAucAtBudget loss(options);
  EXPECT_TRUE(loss.diagnostics().empty());
  for (const PoolRows* rows : {&few, &many, &few}) {
    (void)loss(batch_of(*rows));
    PAucAtBudget fresh(options);
    (void)fresh(batch_of(*rows));
    ASSERT_EQ(loss.diagnostics().size(), 3U);
    EXPECT_EQ(loss.diagnostics()[0].t_beta, fresh.diagnostics()[0].t_beta);
    EXPECT_EQ(loss.diagnostics()[0].band_negatives, fresh.diagnostics()[0].band_negatives);
  }
  const double before = loss.diagnostics()[0].t_beta;
  auto wrong = batch_of(many);
  wrong.iid = std::span(many.iid).first(3);
  expect_error(Errc::invalid_argument, {"iid is u8 [3]"}, [&] { (void)loss(wrong); });
  EXPECT_EQ(loss.diagnostics()[0].t_beta, before);
}

// 1 - 0.9 in floats is another number than 0.1 in float. The last knot is the band's edge.
TEST(PAucAlone, TheEndKnotsAreTheEndsOfTheBand) {
  const std::vector<float> positives{0.1F, 1.9F, 8.4F};
  for (const double beta : {0.9, 0.85, 1.0 / 3, 0.7, 0.6})
    for (const int count : {4, 7, 11, 21, 31, 101})
      for (const auto how : {Interpolation::lower, Interpolation::higher, Interpolation::nearest}) {
        std::vector<float> scores = positives;
        for (int i = 0; i < count; ++i) scores.push_back(static_cast<float>(i));
        std::vector<std::int64_t> targets(scores.size(), 0);
        std::fill_n(targets.begin(), positives.size(), 1);
        PAucAtBudget loss({.alpha = beta / 8, .beta = beta, .interpolation = how});
        const auto got = loss({scores, targets});
        const auto& at = loss.diagnostics().at(0);
        double area = 0;
        for (const float s : positives)
          for (const double t : {at.t_alpha, at.t_beta})
            area += 0.5 / (1 + std::exp((t - static_cast<double>(s)) / at.tau_eff)) /
                    static_cast<double>(positives.size());
        ASSERT_NEAR(got.loss, 1 - area, 1e-12) << beta << " of " << count;
      }
}

TEST(PAucAlone, OptionsOutOfRangeAreRefused) {
  for (const auto& band : {std::pair{0.5, 0.5}, {0.6, 0.5}, {-0.1, 0.5}, {0.0, 1.5}})
    expect_error(Errc::invalid_argument, {"alpha is", "beta"},
                 [&] { PAucAtBudget({.alpha = band.first, .beta = band.second}); });
  expect_error(Errc::invalid_argument, {"knots is 1"}, [] { PAucAtBudget({.knots = 1}); });
  expect_error(Errc::invalid_argument, {"temperature"}, [] { PAucAtBudget({.temperature = -1}); });
}

}  // namespace
}  // namespace tutti::test
