#pragma once

#include <functional>
#include <random>
#include <span>
#include <vector>

namespace tutti::tool {

/// Two-sided p-value of a signed-rank test: the probability that differences whose signs are those
/// of fair coins are on one side as much as these. Each counts as its rank by size, as in
/// Wilcoxon's test, but at most as a third of their number: so a few disturbed ones do not hide the
/// others. Ties have their mean rank, zeros are left out. Exact up to 60 differences, otherwise by
/// the normal distribution.
double signed_rank_p(std::span<const double> differences);

/// Two-sided p-value of the Mann-Whitney test: the probability that values of one distribution,
/// divided into two lists by chance, differ in their ranks as much as `a` and `b`. Exact up to 60
/// values in both.
double rank_sum_p(std::span<const double> a, std::span<const double> b);

/// Adjusts the p-values of tests that are made together (Holm, 1979): the probability of any false
/// rejection at a level is at most this level.
std::vector<double> adjusted(std::span<const double> p_values);

struct Interval {
  double low = 0;
  double high = 0;
};

using Random = std::mt19937_64;

/// The percentile bootstrap interval of 95 %, the same in every run. `draw` computes the statistic
/// of one resample.
Interval bootstrap(const std::function<double(Random&)>& draw);

/// As many of the values, drawn with replacement.
std::vector<double> resampled(std::span<const double> values, Random& random);

}  // namespace tutti::tool
