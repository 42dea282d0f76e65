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
