#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tutti::tool {

/// The nearest-rank percentile: the smallest sample that p per cent of the samples do not exceed.
/// So it is always a sample, and p99 of fewer than 100 samples is their maximum. `sorted` is
/// ascending and not empty, 0 < p <= 100.
double percentile(std::span<const double> sorted, double p);

/// The mean of the two middle ones where there are two. Reorders nothing; not empty.
double median(std::span<const double> samples);

struct Summary {
  std::int64_t n = 0;
  double mean = 0;
  double min = 0;
  double max = 0;
  double stdev = 0;  ///< Of the sample, n - 1; 0 for one sample.
};
/// `samples` is not empty.
Summary summarize(std::span<const double> samples);

/// Samples further from the median than 14.826 median absolute deviations (ten standard
/// deviations of a normal distribution): the rule of hyperfine.
struct Outliers {
  std::int64_t count = 0;
  bool first = false;  ///< The first sample is one, and above the median.
};
Outliers find_outliers(std::span<const double> samples, std::span<const double> sorted);

/// Whether the last five values lie within 5 % of the smallest of them; false for fewer.
bool settled(std::span<const double> values);

struct Point {
  double bytes = 0;
  double us = 0;
};

/// t = alpha + S / beta.
struct Fit {
  double alpha_us = 0;
  double beta_gbps = 0;
  double n_half_bytes = 0;  ///< Where half of beta is reached: alpha * beta.
  double r2 = 0;
};

/// Least squares of the relative error, so that a sweep over many powers of two is not decided by
/// its largest sizes alone. alpha is not negative. Empty for fewer than three different sizes, or
/// when time does not grow with size.
std::optional<Fit> fit_line(std::span<const Point> points);

}  // namespace tutti::tool
