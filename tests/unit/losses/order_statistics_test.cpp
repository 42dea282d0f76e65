#include "losses/order_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::internal::losses {
namespace {

/// The lists of several ranks on one thread: add_up() gets the sum over all ranks. A rank's work
/// depends on the sums alone, so it runs once per round and rank.
std::vector<double> of_ranks(const std::vector<std::vector<double>>& parts,
                             const std::vector<std::int64_t>& indices, int bytes) {
  // Runs all rounds of all ranks in lock step: rank r waits in round k for the counts of all.
  std::vector<std::vector<std::int64_t>> sums;
  std::vector<double> found;
  for (std::size_t rounds = 0; rounds <= static_cast<std::size_t>(bytes); ++rounds) {
    std::vector<std::int64_t> sum;
    for (const auto& part : parts) {
      struct Enough {};
      std::size_t round = 0;
      const Select list{part, indices};
      try {
        found = order_statistics({&list, 1}, bytes, [&](std::span<std::int64_t> counts) {
          if (round < sums.size()) {
            std::ranges::copy(sums[round++], counts.begin());
            return;
          }
          if (sum.empty()) sum.resize(counts.size());
          for (std::size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
          throw Enough();
        })[0];
      } catch (const Enough&) {
      }
    }
    if (sum.empty()) break;
    sums.push_back(sum);
  }
  return found;
}

TEST(OrderStatistics, AreThoseOfTheSortedList) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (const int bytes : {4, 8})
    for (const std::size_t count : {1U, 2U, 7U, 1000U, 100'000U}) {
      std::vector<std::vector<double>> parts(3);
      std::vector<double> all;
      for (std::size_t i = 0; i < count; ++i) {
        // Ties, both signs, tiny and huge.
        double score = i % 3 == 0 ? std::round(normal(random) * 4) / 4 : normal(random);
        if (i % 17 == 3) score = std::numeric_limits<float>::denorm_min();
        if (i % 17 == 4) score = -3 * static_cast<double>(std::numeric_limits<float>::denorm_min());
        if (i % 23 == 6) score = i % 2 == 0 ? 0.0 : -0.0;
        if (i % 19 == 5) score = -static_cast<double>(std::numeric_limits<float>::max());
        if (bytes == 8 && i % 3 == 1) score *= 1 + 1e-12;
        all.push_back(score);
        parts[random() % 3 == 0 ? 0 : 2].push_back(score);  // One rank has nothing.
      }
      std::ranges::sort(all);
      std::vector<std::int64_t> indices;
      for (std::size_t i = 0; i < count; i += 1 + count / 13)
        indices.push_back(static_cast<std::int64_t>(i));
      indices.push_back(static_cast<std::int64_t>(count) - 1);
      const auto found = of_ranks(parts, indices, bytes);
      ASSERT_EQ(found.size(), indices.size());
      for (std::size_t i = 0; i < indices.size(); ++i)
        EXPECT_EQ(found[i], all[static_cast<std::size_t>(indices[i])]) << indices[i];
    }
}

TEST(OrderStatistics, MinusZeroIsBelowZeroAndTiesAreOneScore) {
  for (const int bytes : {4, 8}) {
    const auto found =
        of_ranks({{0.0, -0.0, 3.0}, {-0.0, 0.0, 3.0, 3.0}}, {0, 1, 2, 3, 4, 5, 6}, bytes);
    for (const std::size_t i : {0U, 1U, 2U, 3U}) {
      EXPECT_EQ(found[i], 0);
      EXPECT_EQ(std::signbit(found[i]), i < 2) << i;
    }
    for (const std::size_t i : {4U, 5U, 6U}) EXPECT_EQ(found[i], 3);
  }
}

TEST(OrderStatistics, NoPlacesAreNoRounds) {
  const std::vector<double> scores{1, 2};
  const Select none{scores};
  const auto found = order_statistics({&none, 1}, 4, [](auto) { FAIL() << "asked"; });
  EXPECT_TRUE(found[0].empty());
}

/// The definition, for a list on one rank.
double slow_weighted_quantile(const std::vector<std::pair<double, double>>& rows, double q) {
  auto sorted = rows;
  std::ranges::sort(sorted);
  double all = 0;
  for (const auto& row : rows) all += row.second;
  double sum = 0;
  for (const auto& [score, weight] : sorted) {
    sum += weight;
    if (weight > 0 && sum >= q * all) return score;
  }
  return sorted.back().first;
}

TEST(WeightedQuantiles, AreThoseOfTheDefinition) {
  std::mt19937_64 random(3);
  for (const bool in_float : {true, false})
    for (const std::size_t count : {1U, 2U, 10U, 5000U})
      for (const double scale : {1.0, std::ldexp(1, -900), std::ldexp(1, 900)}) {
        std::vector<double> scores;
        std::vector<double> weights;
        std::vector<std::pair<double, double>> rows;
        double mass = 0;
        for (std::size_t i = 0; i < count; ++i) {
          scores.push_back(static_cast<double>(random() % 400) / 8 - 20);
          // Quarters, so that the sums of the definition are exact.
          weights.push_back(scale * static_cast<double>(i == 0 ? 3 : random() % 9) / 4);
          rows.emplace_back(scores.back(), weights.back());
          mass += weights.back();
        }
        const WeightedQuantiles list{scores, weights, mass, {0, 0.1, 0.5, 0.75, 0.9, 0.995, 1}};
        const auto found = weighted_quantiles_of({&list, 1}, in_float, [](auto) {})[0];
        for (std::size_t k = 0; k < list.q.size(); ++k)
          EXPECT_EQ(found[k], slow_weighted_quantile(rows, list.q[k])) << list.q[k];
      }
}

TEST(WeightedQuantiles, OfEqualWeightsCountRows) {
  std::vector<double> scores;
  for (int i = 1; i <= 10; ++i) scores.push_back(i);
  const std::vector<double> weights(10, 0.1);
  // The sum of all depends on the split: in one row after another it is below 1.
  for (const double mass : {1.0, std::nextafter(1, 0)}) {
    const WeightedQuantiles list{scores, weights, mass, {0, 0.05, 0.1, 0.11, 0.9, 0.95, 1}};
    EXPECT_EQ(weighted_quantiles_of({&list, 1}, true, [](auto) {})[0],
              (std::vector<double>{1, 1, 1, 2, 9, 10, 10}));
  }
}

TEST(WeightedQuantiles, ATieIsOneForEveryUnitOfTheWeights) {
  const std::vector<double> scores{1, 2, 3, 4};
  for (const double unit : {0.1, 1.0, 1.0 / 3, 1e-7}) {
    const std::vector<double> weights{unit, 2 * unit, 3 * unit, 4 * unit};
    const WeightedQuantiles list{scores, weights, 10 * unit, {0.1, 0.3, 0.6, 1}};
    EXPECT_EQ(weighted_quantiles_of({&list, 1}, false, [](auto) {})[0], scores) << unit;
  }
  std::vector<double> many;
  for (int i = 1; i <= 50; ++i) many.push_back(i);
  const std::vector<double> ones(50, 1);
  const WeightedQuantiles list{many, ones, 50, {1 - 0.42}};  // Above 0.58 by its rounding.
  EXPECT_EQ(weighted_quantiles_of({&list, 1}, false, [](auto) {})[0][0], 29);
}

TEST(WeightedQuantiles, OfTheLargestAndTheSmallestNumbers) {
  const std::vector<double> scores{1, 2, 3, 4};
  for (const double weight :
       {std::numeric_limits<double>::max() / 4, std::numeric_limits<double>::denorm_min()}) {
    const std::vector<double> weights(4, weight);
    const WeightedQuantiles list{scores, weights, 4 * weight, {0.25, 0.5, 0.75, 1}};
    EXPECT_EQ(weighted_quantiles_of({&list, 1}, false, [](auto) {})[0], scores);
  }
}

// torch 2.15: lower and higher of arange(n), in float32 and in float64.
TEST(QuantileIndex, IsThatOfTorch) {
  EXPECT_EQ(quantile_index(0.9, 11, true).low, 8);  // 0.9F is less than 0.9.
  EXPECT_EQ(quantile_index(0.9, 11, true).high, 9);
  EXPECT_EQ(quantile_index(0.9, 11, false).low, 9);
  EXPECT_EQ(quantile_index(0.9, 11, false).high, 9);
  EXPECT_EQ(quantile_index(0.999, 33'000, true).high, 32'967);
  EXPECT_EQ(quantile_index(0.995, 131'800, true).low, 131'140);
  EXPECT_EQ(quantile_index(0.5, 4, true).low, 1);
  EXPECT_EQ(quantile_index(0.5, 4, true).high, 2);
  EXPECT_EQ(quantile_index(0.5, 4, true).weight, 0.5);
  EXPECT_EQ(quantile_index(0.999, 1, true).high, 0);
  // Inputs that torch refuses.
  EXPECT_EQ(quantile_index(0.5, (std::int64_t{1} << 25) + 1, true).low, std::int64_t{1} << 24);
}

}  // namespace
}  // namespace tutti::internal::losses
