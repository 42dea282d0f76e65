#include <tutti/losses/squared_auc.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti::test {
namespace {

using losses::ClassStatus;
using losses::LossResult;
using losses::RankingBatch;
using losses::SquaredAuc;

struct ScoredPairs {
  double loss = 0;
  std::vector<double> grad{};
};
/// The mean over all pairs, in long double, of one class.
ScoredPairs over_pairs(const std::vector<double>& scores, const std::vector<std::int64_t>& targets,
                       const std::vector<double>& weights, double margin) {
  long double sum = 0;
  long double mass = 0;
  std::vector<long double> grad(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i)
    for (std::size_t j = 0; j < scores.size(); ++j) {
      if (targets[i] != 1 || targets[j] != 0) continue;
      const long double w = static_cast<long double>(weights[i]) * weights[j];
      const long double missing = margin - (static_cast<long double>(scores[i]) - scores[j]);
      mass += w;
      sum += w * missing * missing;
      grad[i] -= 2 * w * missing;
      grad[j] += 2 * w * missing;
    }
  ScoredPairs pairs;
  if (mass > 0) pairs.loss = static_cast<double>(sum / mass);
  for (const auto g : grad) pairs.grad.push_back(mass > 0 ? static_cast<double>(g / mass) : 0);
  return pairs;
}

TEST(SquaredAucOfRandomRows, IsTheMeanOverAllPairsForAnySplitAndOffset) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> score;
  int valid = 0;
  for (int problem = 0; problem < 500; ++problem) {
    SCOPED_TRACE(problem);
    // Many rows are not inlined, so each rank has its own alone.
    const std::size_t n = problem % 50 == 7 ? 1600 : random() % 40;
    const double offset = problem % 2 == 0 ? 1e6 : 0;
    std::vector<float> scores;
    std::vector<std::int64_t> targets;
    std::vector<double> weights;
    for (std::size_t i = 0; i < n; ++i) {
      scores.push_back(static_cast<float>(offset + 3 * score(random)));
      targets.push_back(random() % 7 == 0   ? losses::default_ignore_index
                        : random() % 4 == 0 ? 1
                                            : 0);
      weights.push_back(problem % 3 == 0 ? static_cast<double>(random() % 5) : 1);
    }
    const SquaredAuc::Options options{.margin = problem % 5 == 0 ? 0.25 : 1};
    const auto want = over_pairs({scores.begin(), scores.end()}, targets, weights, options.margin);
    valid += want.loss > 0 ? 1 : 0;
    double largest = 0;
    for (const double g : want.grad) largest = std::max(largest, std::abs(g));
    const World world{"local", 1 + problem % 5};
    std::vector<std::size_t> cuts{0, n};
    for (int r = 1; r < world.size; ++r) cuts.push_back(random() % (n + 1));
    std::ranges::sort(cuts);
    on_ranks(world, [&](ProcessGroup& group) {
      const auto first = cuts[static_cast<std::size_t>(group.rank())];
      const auto count = cuts[static_cast<std::size_t>(group.rank()) + 1] - first;
      const std::vector<double> wide(scores.begin(), scores.end());
      RankingBatch batch{std::span(wide).subspan(first, count),
                         std::span(targets).subspan(first, count)};
      if (problem % 3 == 0) batch.weight = std::span(weights).subspan(first, count);
      const auto got = SquaredAuc(options)(group, batch);
      ASSERT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_NEAR(static_cast<const double*>(got.grad.data())[i],
                    group.size() * want.grad[first + i], 1e-12 * group.size() * largest);
      batch.logits = std::span(scores).subspan(first, count);
      const auto in_float = SquaredAuc(options)(group, batch);
      ASSERT_EQ(in_float.loss, got.loss);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(static_cast<const float*>(in_float.grad.data())[i],
                  static_cast<float>(static_cast<const double*>(got.grad.data())[i]));
    });
  }
  EXPECT_GT(valid, 400);
}

TEST(SquaredAucAlone, PairsBeyondTheMarginHaveALoss) {
  const std::vector<double> scores{5, 0};
  const std::vector<std::int64_t> targets{1, 0};
  const auto got = SquaredAuc()({scores, targets});
  EXPECT_EQ(got.loss, 16);
  EXPECT_EQ(static_cast<const double*>(got.grad.data())[0], 8);
}

TEST(SquaredAucAlone, ClassesAreOneVersusRest) {
  const std::vector<double> logits{1, 2, 3, 4, 0, -1, 2, 2, 5, 1, 1, 7};
  const std::vector<std::int64_t> targets{0, 1, 1, 0};  // None of class 2.
  const auto got = SquaredAuc({.classes = 3})({view(std::span(logits), {4, 3}), targets});
  double sum = 0;
  for (std::size_t c = 0; c < 2; ++c) {
    std::vector<double> scores;
    std::vector<std::int64_t> positive;
    for (std::size_t i = 0; i < 4; ++i) {
      scores.push_back(logits[3 * i + c]);
      positive.push_back(targets[i] == static_cast<std::int64_t>(c) ? 1 : 0);
    }
    const auto want = over_pairs(scores, positive, std::vector<double>(4, 1), 1);
    EXPECT_NEAR(got.per_class[c], want.loss, 1e-12 * want.loss);
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(static_cast<const double*>(got.grad.data())[3 * i + c], want.grad[i] / 2, 1e-12);
    sum += want.loss;
  }
  EXPECT_NEAR(got.loss, sum / 2, 1e-12 * sum);
  EXPECT_EQ(got.status[2], ClassStatus::no_positives);
  EXPECT_TRUE(std::isnan(got.per_class[2]));
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(static_cast<const double*>(got.grad.data())[3 * i + 2], 0);
}

TEST(SquaredAucAlone, AClassWithoutPairsIsNotValid) {
  const std::vector<double> scores{1, 2};
  const auto expect = [&](const std::vector<std::int64_t>& targets,
                          const std::vector<double>& weights, ClassStatus status) {
    RankingBatch batch{scores, targets};
    batch.weight = weights;
    const auto got = SquaredAuc()(batch);
    EXPECT_EQ(got.loss, 0);
    EXPECT_EQ(got.status, std::vector{status});
    for (int i = 0; i < 2; ++i) EXPECT_EQ(static_cast<const double*>(got.grad.data())[i], 0);
  };
  expect({0, 0}, {1, 1}, ClassStatus::no_positives);
  expect({1, 1}, {1, 1}, ClassStatus::no_negatives);
  expect({0, 1}, {0, 1}, ClassStatus::no_weight);
  expect({0, 1}, {1, 0}, ClassStatus::no_weight);
  expect({losses::default_ignore_index, 1}, {1, 1}, ClassStatus::no_negatives);
}

// Weights whose products with scores overflow, and others that are subnormal.
TEST(SquaredAucOfExtremeWeights, IsThatOfTheirRatios) {
  const std::vector<double> scores{100, 2, 3, 4, -50, 7};
  const std::vector<std::int64_t> targets{0, 1, 0, 1, 0, 1};
  const auto want = over_pairs(scores, targets, std::vector<double>(6, 1), 1);
  for (const double weight : {2e307, 1e-310})
    on_ranks({"local", 2}, [&](ProcessGroup& group) {
      const auto first = static_cast<std::size_t>(group.rank()) * 2;
      const auto count = static_cast<std::size_t>(group.rank() == 0 ? 2 : 4);
      const std::vector<double> weights(count, weight);
      RankingBatch batch{std::span(scores).subspan(first, count),
                         std::span(targets).subspan(first, count)};
      batch.weight = weights;
      const auto got = SquaredAuc()(group, batch);
      EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss) << weight;
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_NEAR(static_cast<const double*>(got.grad.data())[i], 2 * want.grad[first + i], 1e-9)
            << weight;
    });
}

TEST(SquaredAucAlone, AMarginThatIsNotFiniteIsRefused) {
  expect_error(Errc::invalid_argument, {"squared_auc", "margin is inf"},
               [] { SquaredAuc({.margin = HUGE_VAL}); });
}

}  // namespace
}  // namespace tutti::test
