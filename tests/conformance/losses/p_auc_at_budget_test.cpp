#include <tutti/losses/p_auc_at_budget.hpp>

#include <algorithm>
#include <cmath>
#include <random>

#include "conformance/losses/loss_rows.hpp"
#include "support/call_loss.hpp"

// Any split of the rows gives the same result, and the gradient equals finite differences. Values
// are compared with recorded cases in tests/unit/losses/ranking_reference_test.cpp.

namespace tutti::test {
namespace {

using losses::Interpolation;
using losses::PAucAtBudget;
using Options = losses::PAucAtBudgetOptions;

struct PAucRows {
  std::int64_t classes = 1;
  std::vector<double> logits;
  std::vector<std::int64_t> targets;
  std::vector<std::uint8_t> iid;

  std::int64_t count() const { return std::ssize(targets); }
};

PAucRows make_p_auc_rows(std::int64_t count, std::int64_t classes) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> score;
  PAucRows rows{classes, {}, {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < classes; ++c) rows.logits.push_back(score(random));
    const auto some = static_cast<std::int64_t>(random() % 1000);
    rows.targets.push_back(i % 7 == 6     ? losses::default_ignore_index
                           : classes == 1 ? some % 3 == 0
                                          : some % (classes - 1));
    rows.iid.push_back(some % 5 != 0);
  }
  return rows;
}

struct Result : losses::LossResult {
  std::vector<losses::PAucDiagnostics> diagnostics;
};

Result loss_of(const Options& options, ProcessGroup* group, const PAucRows& rows,
               std::int64_t first, std::int64_t n) {
  const auto from = static_cast<std::size_t>(first);
  const auto count = static_cast<std::size_t>(n);
  const auto width = static_cast<std::size_t>(rows.classes);
  const auto logits = std::span(rows.logits).subspan(from * width, count * width);
  const auto targets = std::span(rows.targets).subspan(from, count);
  const auto iid = std::span(rows.iid).subspan(from, count);
  PAucAtBudget loss(options);
  auto result =
      call_loss(loss, group, losses::Batch{view(logits, {n, rows.classes}), targets, iid});
  return {std::move(result), loss.diagnostics()};
}

std::vector<Options> all_options(std::int64_t classes) {
  std::vector<Options> all;
  for (const auto surrogate : {Options::Surrogate::trapezoid, Options::Surrogate::pairwise})
    for (const auto scale : {Options::Scale::iqr, Options::Scale::band})
      for (const auto basis : {Options::Basis::fpr, Options::Basis::population})
        all.push_back({.classes = classes,
                       .alpha = 0.05,
                       .beta = 0.4,
                       .surrogate = surrogate,
                       .knots = 4,
                       .tau_scale = scale,
                       .basis = basis,
                       .interpolation = Interpolation::linear});
  return all;
}

class PAucOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, PAucOfRanks, testing::ValuesIn(worlds()), CaseName());

TEST_P(PAucOfRanks, IsThatOfOneProcessForAnySplit) {
  for (const std::int64_t classes : {1, 3})
    for (const Options& options : all_options(classes)) {
      // Every pair of choices once.
      if ((options.tau_scale == Options::Scale::iqr) != (options.basis == Options::Basis::fpr))
        continue;
      if (reduced() && classes > 1) continue;
      const PAucRows rows = make_p_auc_rows(80, classes);
      const auto want = loss_of(options, nullptr, rows, 0, rows.count());
      for (Layout split : layouts(GetParam().size)) {
        split.back() += rows.count() - total(split);
        if (split.back() < 0) continue;
        on_ranks(GetParam(), [&](ProcessGroup& group) {
          SCOPED_TRACE("rows " + to_string(split));
          const auto first = offset(split, group.rank());
          const auto got = loss_of(options, &group, rows, first, split[index(group.rank())]);
          EXPECT_NEAR(got.loss, want.loss, 1e-12);
          EXPECT_EQ(got.status, want.status);
          for (std::size_t c = 0; c < got.diagnostics.size(); ++c) {
            if (got.status[c] != losses::ClassStatus::valid) continue;
            EXPECT_EQ(got.diagnostics[c].t_alpha, want.diagnostics[c].t_alpha);
            EXPECT_EQ(got.diagnostics[c].t_beta, want.diagnostics[c].t_beta);
            EXPECT_EQ(got.diagnostics[c].tau_eff, want.diagnostics[c].tau_eff);
            EXPECT_EQ(got.diagnostics[c].band_negatives, want.diagnostics[c].band_negatives);
            EXPECT_NEAR(got.diagnostics[c].variance, want.diagnostics[c].variance, 1e-12);
          }
          const auto* part = static_cast<const double*>(got.grad.data());
          const auto* all = static_cast<const double*>(want.grad.data()) + first * classes;
          for (std::int64_t i = 0; i < got.grad.shape().numel(); ++i)
            ASSERT_NEAR(part[i], group.size() * all[i], 1e-12 * group.size());
        });
      }
    }
}

TEST_P(PAucOfRanks, AMistakeOfOneRankIsAnErrorOnAll) {
  const PAucRows rows = make_p_auc_rows(12, 3);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const auto logits = view(std::span(rows.logits), {12, 3});
    const auto iid = std::span(rows.iid).first(last ? 11 : 12);
    PAucAtBudget loss({.classes = 3, .beta = 0.5});
    expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                 {"p_auc_at_budget", "iid is u8 [11]"}, [&] {
                   loss(group, {logits, rows.targets, iid});
                 });
    if (group.size() > 1)
      expect_error(Errc::mismatch, {"beta 0.5", "beta 0.25"}, [&] {
        loss_of({.classes = 3, .beta = last ? 0.5 : 0.25}, &group, rows, 0, 12);
      });
    loss_of({.classes = 3, .beta = 0.5}, &group, rows, 0, 12);
  });
}

// Thresholds and scales are constants for the gradient, so only rows that do not affect them are
// moved: for Basis::fpr the positives.
TEST(PAucAlone, TheGradientOfPositivesIsThatOfFiniteDifferences) {
  for (const Options& options : all_options(1)) {
    if (options.basis != Options::Basis::fpr) continue;
    PAucRows rows = make_p_auc_rows(50, 1);
    const auto at = [&] { return loss_of(options, nullptr, rows, 0, rows.count()); };
    const auto got = at();
    constexpr double step = 1e-6;
    for (std::size_t i = 0; i < rows.targets.size(); ++i) {
      if (rows.targets[i] != 1) continue;
      EXPECT_NEAR(static_cast<const double*>(got.grad.data())[i],
                  central_difference(rows.logits[i], step, [&] { return at().loss; }), 1e-7);
    }
  }
}

TEST(PAucAlone, DiagnosticsAreThoseOfTheLastCallThatSucceeded) {
  const PAucRows few = make_p_auc_rows(40, 3);
  const PAucRows many = make_p_auc_rows(80, 3);
  const auto batch = [](const PAucRows& rows) {
    return losses::Batch{view(std::span(rows.logits), {rows.count(), 3}), rows.targets, rows.iid};
  };
  const Options options{.classes = 3, .beta = 0.5};
  PAucAtBudget loss(options);
  EXPECT_TRUE(loss.diagnostics().empty());
  for (const PAucRows* rows : {&few, &many, &few}) {
    losses::RankingLoss& base = loss;
    (void)base(batch(*rows));
    const auto want = loss_of(options, nullptr, *rows, 0, rows->count()).diagnostics;
    ASSERT_EQ(loss.diagnostics().size(), 3U);
    EXPECT_EQ(loss.diagnostics()[0].t_beta, want[0].t_beta);
    EXPECT_EQ(loss.diagnostics()[0].band_negatives, want[0].band_negatives);
  }
  const double before = loss.diagnostics()[0].t_beta;
  auto wrong = batch(many);
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
