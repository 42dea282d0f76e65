#include "common/significance.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "common/statistics.hpp"

namespace tutti::tool {
namespace {

double rank_of(const std::vector<double>& values, double value) {
  double below = 0;
  double equal = 0;
  for (const double each : values) {
    below += each < value ? 1 : 0;
    equal += each == value ? 1 : 0;
  }
  return below + (equal + 1) / 2;
}

/// The p-value by trying every choice of `chosen` of the ranks; 0 for choices of any number.
double p_by_trying(const std::vector<double>& ranks, double sum, int chosen) {
  double below = 0;
  double above = 0;
  double all = 0;
  for (std::uint32_t choice = 0; choice < 1U << ranks.size(); ++choice) {
    if (chosen != 0 && std::popcount(choice) != chosen) continue;
    double other = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if ((choice >> i & 1U) != 0) other += ranks[i];
    all += 1;
    below += other <= sum ? 1 : 0;
    above += other >= sum ? 1 : 0;
  }
  return std::min(1.0, 2 * std::min(below, above) / all);
}

double signed_rank_by_trying(const std::vector<double>& differences) {
  std::vector<double> sizes;
  for (const double d : differences) sizes.push_back(std::abs(d));
  std::vector<double> ranks;
  double sum = 0;
  for (const double d : differences) {
    const auto most = std::max(1.0, std::floor(2 * static_cast<double>(sizes.size()) / 3) / 2);
    ranks.push_back(std::min(rank_of(sizes, std::abs(d)), most));
    if (d > 0) sum += ranks.back();
  }
  return p_by_trying(ranks, sum, 0);
}

double rank_sum_by_trying(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> both = a;
  both.insert(both.end(), b.begin(), b.end());
  std::vector<double> ranks;
  double sum = 0;
  for (std::size_t i = 0; i < both.size(); ++i) {
    ranks.push_back(rank_of(both, both[i]));
    if (i < a.size()) sum += ranks.back();
  }
  return p_by_trying(ranks, sum, static_cast<int>(a.size()));
}

TEST(Significance, PValuesOfFewValuesAreThoseOfAllChoicesAlsoWithTies) {
  Random random(7);
  const auto list = [&](std::size_t n) {
    std::vector<double> values;
    while (values.size() < n) {
      const double value = static_cast<double>(random() % 9) - 4;
      if (value != 0) values.push_back(value);
    }
    return values;
  };
  for (int i = 0; i < 50; ++i) {
    const std::vector<double> differences = list(1 + random() % 9);
    EXPECT_NEAR(signed_rank_p(differences), signed_rank_by_trying(differences), 1e-12);
    const std::vector<double> a = list(1 + random() % 5);
    const std::vector<double> b = list(1 + random() % 5);
    EXPECT_NEAR(rank_sum_p(a, b), rank_sum_by_trying(a, b), 1e-12);
  }
}

TEST(Significance, AFewDisturbedDifferencesDoNotHideTheOthers) {
  std::vector<double> differences(20, 1.0);
  for (std::size_t i = 0; i < differences.size(); ++i)
    differences[i] += 0.01 * static_cast<double>(i);
  for (std::size_t i = 0; i < 3; ++i) differences[i] = -100;
  // Wilcoxon's p-value is 0.076: the three have the largest ranks.
  EXPECT_LT(signed_rank_p(differences), 0.01);
}

TEST(Significance, ZerosSayNothing) {
  const std::vector<double> with{0, 1, 2, 0, 3};
  const std::vector<double> without{1, 2, 3};
  EXPECT_EQ(signed_rank_p(with), signed_rank_p(without));
  const std::vector<double> zeros(5);
  EXPECT_EQ(signed_rank_p(zeros), 1);
}

/// `n` values from a + 1 on, alternating with `n` from b + 1 on.
TEST(Significance, PValuesOfManyValuesContinueThoseOfFew) {
  for (const double shift : {0.0, 5.0, 12.0}) {
    std::vector<double> differences;
    std::vector<double> a;
    std::vector<double> b;
    for (int i = 0; i < 30; ++i) {
      a.push_back(2 * i);
      b.push_back(2 * i + 1 + shift);
      differences.push_back(i % 2 == 0 ? 2 * i + 1 + shift : -2 * i);
      differences.push_back(i % 2 != 0 ? 2 * i + 1 + shift : -2 * i - 1);
    }
    const double exact_signed = signed_rank_p(differences);
    const double exact_sum = rank_sum_p(a, b);
    differences.push_back(1e-9);
    a.push_back(30);
    EXPECT_NEAR(signed_rank_p(differences), exact_signed, 0.03) << shift;
    EXPECT_NEAR(rank_sum_p(a, b), exact_sum, 0.03) << shift;
  }
}

TEST(Significance, EqualListsAreRejectedAsOftenAsTheLevelSays) {
  Random random(3);
  std::normal_distribution<double> normal;
  int signs = 0;
  int sums = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> a(12);
    std::vector<double> b(12);
    for (double& each : a) each = normal(random);
    for (double& each : b) each = normal(random);
    signs += signed_rank_p(a) < 0.05 ? 1 : 0;
    sums += rank_sum_p(a, b) < 0.05 ? 1 : 0;
  }
  // 100 expected at most; 140 is four standard deviations above. Exact levels of 12 are 4.2 and 4.5
  // %.
  for (const int rejected : {signs, sums}) {
    EXPECT_GT(rejected, 40);
    EXPECT_LT(rejected, 140);
  }
}

TEST(Significance, HolmMultipliesByTheTestsThatAreLeft) {
  const std::vector<double> p{0.04, 0.01, 0.03, 0.9};
  const std::vector<double> expected{0.09, 0.04, 0.09, 0.9};
  const std::vector<double> found = adjusted(p);
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12);
  EXPECT_TRUE(adjusted({}).empty());
}

TEST(Significance, TheBootstrapIntervalOfAMeanHasItsStandardError) {
  Random random(5);
  std::normal_distribution<double> normal(10, 1);
  std::vector<double> values(100);
  for (double& each : values) each = normal(random);
  const Interval interval =
      bootstrap([&](Random& source) { return summarize(resampled(values, source)).mean; });
  const Summary summary = summarize(values);
  // 1.96 standard errors of 0.1; 2000 resamples know the ends of the interval to about 0.005.
  EXPECT_NEAR(interval.low, summary.mean - 0.196 * summary.stdev, 0.03);
  EXPECT_NEAR(interval.high, summary.mean + 0.196 * summary.stdev, 0.03);
}

}  // namespace
}  // namespace tutti::tool
