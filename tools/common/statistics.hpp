#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tutti::tool {

/// The nearest-rank percentile: the smallest sample that p per cent of the samples do not exceed.
/// Always a sample; p99 of fewer than 100 samples is the maximum. `sorted` is ascending and not
/// empty, 0 < p <= 100.
double percentile(std::span<const double> sorted, double p);

/// The mean; `samples` is not empty.
double mean(std::span<const double> samples);

/// The median; of an even number of samples the mean of the two middle ones. Does not reorder
/// `samples`, which is not empty.
double median(std::span<const double> samples);

struct Summary {
  std::int64_t n = 0;
  double p50 = 0;  ///< median().
  double mean = 0;
  double min = 0;
  double max = 0;
  double stdev = 0;  ///< Of the sample, with n - 1; 0 for one sample.
};
/// `samples` is not empty.
Summary summarize(std::span<const double> samples);

/// Samples further from the median than 14.826 median absolute deviations (ten standard
/// deviations of a normal distribution): the rule of hyperfine.
struct Outliers {
  std::int64_t count = 0;
  bool first = false;  ///< The first sample is an outlier, and above the median.
};
Outliers find_outliers(std::span<const double> samples, std::span<const double> sorted);

/// True if the last five values lie within 5 % of the smallest of them; false for fewer values.
bool settled(std::span<const double> values);

struct Point {
  double bytes = 0;
  double us = 0;
};

/// The time of a call as a line over its size S: t = alpha + S / beta.
struct Fit {
  double alpha_us = 0;
  double beta_gbps = 0;
  double n_half_bytes = 0;  ///< Size at half of beta: alpha * beta.
  double r2 = 0;
};

/// Fits a line by least squares of the relative error, so that the largest sizes of a sweep do not
/// dominate. alpha is not negative. Empty for fewer than three different sizes, for a time that is
/// not above 0, or if time does not grow with size.
std::optional<Fit> fit_line(std::span<const Point> points);

}  // namespace tutti::tool
