#include "common/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace tutti::tool {

double percentile(std::span<const double> sorted, double p) {
  const auto n = static_cast<double>(sorted.size());
  // Rounding may put the product just above an integer (99.9 % of 1000); without the subtraction
  // ceil() would return one too many.
  const double position = std::ceil(p / 100 * n - 1e-9);
  return sorted[static_cast<std::size_t>(std::clamp(position, 1.0, n)) - 1];
}

double mean(std::span<const double> samples) {
  double sum = 0;
  for (const double x : samples) sum += x;
  return sum / static_cast<double>(samples.size());
}

double median(std::span<const double> samples) {
  std::vector<double> copy(samples.begin(), samples.end());
  const auto middle = copy.begin() + static_cast<std::ptrdiff_t>(copy.size() / 2);
  std::nth_element(copy.begin(), middle, copy.end());
  if (copy.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(copy.begin(), middle)) / 2;
}

Summary summarize(std::span<const double> samples) {
  Summary s;
  s.n = std::ssize(samples);
  s.p50 = median(samples);
  const auto n = static_cast<double>(s.n);
  s.mean = mean(samples);
  double squares = 0;
  for (const double x : samples) squares += (x - s.mean) * (x - s.mean);
  s.stdev = s.n > 1 ? std::sqrt(squares / (n - 1)) : 0;
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  s.min = *low;
  s.max = *high;
  return s;
}

Outliers find_outliers(std::span<const double> samples, std::span<const double> sorted) {
  const double middle = percentile(sorted, 50);
  std::vector<double> deviations;
  deviations.reserve(samples.size());
  for (const double x : samples) deviations.push_back(std::abs(x - middle));
  // The clock's resolution is a nanosecond, so smaller deviations are unknown.
  const double limit = 14.826 * std::max(median(deviations), 1e-3);
  Outliers found;
  found.count =
      std::count_if(deviations.begin(), deviations.end(), [limit](double d) { return d > limit; });
  found.first = samples.front() - middle > limit;
  return found;
}

bool settled(std::span<const double> values) {
  if (values.size() < 5) return false;
  const auto last = values.last(5);
  const auto [low, high] = std::minmax_element(last.begin(), last.end());
  return *high <= *low * 1.05;
}

std::optional<Fit> fit_line(std::span<const Point> points) {
  std::set<double> sizes;
  for (const Point& p : points) {
    if (!(p.us > 0)) return std::nullopt;
    sizes.insert(p.bytes);
  }
  if (sizes.size() < 3) return std::nullopt;

  // Minimises the sum of ((alpha + slope * S - t) / t)^2: weights w = 1 / t^2.
  double w = 0, ws = 0, wt = 0, wss = 0, wst = 0;
  for (const Point& p : points) {
    const double weight = 1 / (p.us * p.us);
    w += weight;
    ws += weight * p.bytes;
    wt += weight * p.us;
    wss += weight * p.bytes * p.bytes;
    wst += weight * p.bytes * p.us;
  }
  double slope = (w * wst - ws * wt) / (w * wss - ws * ws);
  double alpha = (wt - slope * ws) / w;
  if (alpha < 0) {
    alpha = 0;
    slope = wst / wss;
  }
  if (!(slope > 0)) return std::nullopt;

  const double mean = wt / w;
  double residual = 0, total = 0;
  for (const Point& p : points) {
    const double weight = 1 / (p.us * p.us);
    const double miss = p.us - alpha - slope * p.bytes;
    residual += weight * miss * miss;
    total += weight * (p.us - mean) * (p.us - mean);
  }
  Fit fit;
  fit.alpha_us = alpha;
  fit.beta_gbps = 1e-3 / slope;  // Bytes per microsecond are MB/s.
  fit.n_half_bytes = alpha / slope;
  fit.r2 = total > 0 ? 1 - residual / total : 1;
  return fit;
}

}  // namespace tutti::tool
