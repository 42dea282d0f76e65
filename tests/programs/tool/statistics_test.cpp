#include "common/statistics.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(Statistics, APercentileIsTheSmallestSampleThatEnoughDoNotExceed) {
  const auto hundred = one_to(100);
  EXPECT_EQ(percentile(hundred, 50), 50);
  EXPECT_EQ(percentile(hundred, 90), 90);
  EXPECT_EQ(percentile(hundred, 99), 99);
  EXPECT_EQ(percentile(hundred, 99.9), 100);
  EXPECT_EQ(percentile(hundred, 100), 100);
  EXPECT_EQ(percentile(hundred, 0.001), 1);
  EXPECT_EQ(percentile(one_to(5), 50), 3);
  EXPECT_EQ(percentile(one_to(1), 99), 1);
}

TEST(Statistics, P99OfFewerThan100SamplesIsTheMaximum) {
  EXPECT_EQ(percentile(one_to(99), 99), 99);
  EXPECT_EQ(percentile(one_to(200), 99), 198);
}

TEST(Statistics, BlocksAreConsecutiveAndAsManyAsThereAreSamplesForAtMost20) {
  EXPECT_EQ(block_medians(one_to(3)), one_to(3));
  EXPECT_EQ(block_medians(one_to(60)).size(), 20U);
  EXPECT_EQ(block_medians(one_to(60)).front(), 2);
  EXPECT_EQ(block_medians(one_to(60)).back(), 59);
  EXPECT_EQ(block_medians(one_to(41)).size(), 20U);
  EXPECT_EQ(block_medians(one_to(41)).back(), 40);  // Of 39 to 41: none is left out.
  EXPECT_TRUE(block_medians({}).empty());
}

TEST(Statistics, TheMedianOfAnEvenNumberIsBetweenTheTwoMiddleOnes) {
  const std::vector<double> even{9, 1, 3, 2};
  EXPECT_EQ(median(even), 2.5);
  const std::vector<double> odd{9, 1, 3};
  EXPECT_EQ(median(odd), 3);
}

TEST(Statistics, SummaryHasTheDeviationOfASample) {
  const std::vector<double> samples{2, 4, 4, 4, 5, 5, 7, 9};
  const Summary s = summarize(samples);
  EXPECT_EQ(s.n, 8);
  EXPECT_DOUBLE_EQ(s.mean, 5);
  EXPECT_DOUBLE_EQ(s.stdev * s.stdev, 32.0 / 7);
  EXPECT_EQ(s.min, 2);
  EXPECT_EQ(s.max, 9);
  const std::vector<double> one{3};
  EXPECT_EQ(summarize(one).stdev, 0);
}

TEST(Statistics, OutliersLieBeyond14MediansOfTheDeviations) {
  // Median 100, deviations 0, 1, 1, 2, 2, ...: their median is 1, the limit 14.826.
  std::vector<double> samples{100, 99, 101, 100, 99, 101, 114};
  const auto outliers = [](const std::vector<double>& values) {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return find_outliers(values, sorted);
  };
  EXPECT_EQ(outliers(samples).count, 0);
  samples.back() = 115;
  EXPECT_EQ(outliers(samples).count, 1);
  EXPECT_FALSE(outliers(samples).first);
  std::swap(samples.front(), samples.back());
  EXPECT_TRUE(outliers(samples).first);
}

TEST(Statistics, EqualSamplesHaveNoOutliersWithinAClockTick) {
  std::vector<double> samples(50, 1.0);
  samples[7] = 1.001;
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(find_outliers(samples, sorted).count, 0);
}

TEST(Statistics, SettledMeansTheLastFiveAreWithinFivePercent) {
  EXPECT_FALSE(settled(std::vector<double>{1, 1, 1, 1}));
  EXPECT_TRUE(settled(std::vector<double>{9, 1, 1.05, 1, 1, 1}));
  EXPECT_FALSE(settled(std::vector<double>{1, 1.06, 1, 1, 1}));
}

TEST(Statistics, FitRecoversLatencyAndBandwidth) {
  std::vector<Point> points;
  for (double bytes = 1024; bytes <= 1e8; bytes *= 8)
    points.push_back({bytes, 40 + bytes / 750});  // 0.75 GB/s is 750 bytes per microsecond.
  const auto fit = fit_line(points);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->alpha_us, 40, 1e-6);
  EXPECT_NEAR(fit->beta_gbps, 0.75, 1e-9);
  EXPECT_NEAR(fit->n_half_bytes, 30000, 1e-3);
  EXPECT_NEAR(fit->r2, 1, 1e-9);
}

TEST(Statistics, FitDoesNotDependOnTheUnevenSpreadOfASweep) {
  // Ten per cent too slow at the largest size must not move the latency.
  std::vector<Point> points;
  for (double bytes = 8; bytes <= 1e8; bytes *= 8) points.push_back({bytes, 10 + bytes / 1000});
  points.back().us *= 1.1;
  const auto fit = fit_line(points);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->alpha_us, 10, 0.5);
}

TEST(Statistics, FitIsRefusedWithoutThreeSizesOrWithoutGrowth) {
  EXPECT_FALSE(fit_line({}));
  EXPECT_FALSE(fit_line(std::vector<Point>{{8, 1}, {16, 2}}));
  EXPECT_FALSE(fit_line(std::vector<Point>{{8, 1}, {8, 2}, {16, 3}, {16, 4}}));
  EXPECT_FALSE(fit_line(std::vector<Point>{{8, 3}, {16, 2}, {32, 1}}));
  EXPECT_FALSE(fit_line(std::vector<Point>{{8, 0}, {16, 2}, {32, 3}}));
}

TEST(Statistics, FitNeverHasANegativeLatency) {
  const auto fit = fit_line(std::vector<Point>{{100, 1}, {1000, 20}, {10000, 300}});
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->alpha_us, 0);
  EXPECT_GT(fit->beta_gbps, 0);
}

}  // namespace
}  // namespace tutti::tool
