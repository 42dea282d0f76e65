#include "common/significance.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/statistics.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_exact = 60;
constexpr int resamples = 2000;

/// Twice the ranks of the values, in their order. Ties have the mean of their ranks, so twice the
/// ranks are whole numbers.
std::vector<std::size_t> doubled_ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<std::size_t> ranks(values.size());
  for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
    while (last < order.size() && values[order[last]] == values[order[first]]) ++last;
    for (std::size_t i = first; i < last; ++i) ranks[order[i]] = first + last + 1;
  }
  return ranks;
}

/// Two-sided p-value of a sum, given the probabilities of all sums.
double two_sided(std::span<const double> probabilities, std::size_t sum) {
  const auto begin = probabilities.begin();
  const auto at = begin + static_cast<std::ptrdiff_t>(sum);
  const double below = std::accumulate(begin, at + 1, 0.0);
  const double above = std::accumulate(at, probabilities.end(), 0.0);
  return std::min(1.0, 2 * std::min(below, above));
}

/// Two-sided p-value of a sum that is about normal. `step`: the distance of two sums.
double two_sided(double distance, double variance, double step) {
  const double corrected = std::max(std::abs(distance) - step / 2, 0.0);
  return variance > 0 ? std::erfc(corrected / std::sqrt(2 * variance)) : 1;
}

}  // namespace

double signed_rank_p(std::span<const double> differences) {
  std::vector<double> sizes;
  std::vector<bool> positive;
  for (const double d : differences) {
    if (d == 0) continue;
    sizes.push_back(std::abs(d));
    positive.push_back(d > 0);
  }
  std::vector<std::size_t> ranks = doubled_ranks(sizes);
  const std::size_t most = std::max<std::size_t>(2, 2 * ranks.size() / 3);
  for (std::size_t& rank : ranks) rank = std::min(rank, most);
  const std::size_t total = std::accumulate(ranks.begin(), ranks.end(), std::size_t{0});
  std::size_t sum = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (positive[i]) sum += ranks[i];
  if (ranks.size() > most_exact) {
    double squares = 0;
    for (const std::size_t r : ranks) squares += static_cast<double>(r) * static_cast<double>(r);
    const double expected = static_cast<double>(total) / 2;
    return two_sided(static_cast<double>(sum) - expected, squares / 4, 2);
  }
  std::vector<double> probabilities(total + 1);
  probabilities[0] = 1;
  for (const std::size_t r : ranks)
    for (std::size_t s = total + 1; s-- > 0;)
      probabilities[s] = (probabilities[s] + (s >= r ? probabilities[s - r] : 0)) / 2;
  return two_sided(probabilities, sum);
}

double rank_sum_p(std::span<const double> a, std::span<const double> b) {
  std::vector<double> values(a.begin(), a.end());
  values.insert(values.end(), b.begin(), b.end());
  const std::vector<std::size_t> ranks = doubled_ranks(values);
  const auto end_of_a = ranks.begin() + std::ssize(a);
  const std::size_t sum = std::accumulate(ranks.begin(), end_of_a, std::size_t{0});
  const std::size_t total = std::accumulate(ranks.begin(), ranks.end(), std::size_t{0});
  const auto n = static_cast<double>(values.size());
  const auto share = static_cast<double>(a.size()) / n;
  if (values.size() > most_exact) {
    const double mean = static_cast<double>(total) / n;
    double squares = 0;
    for (const std::size_t r : ranks)
      squares += (static_cast<double>(r) - mean) * (static_cast<double>(r) - mean);
    const double variance = share * static_cast<double>(b.size()) * squares / (n - 1);
    return two_sided(static_cast<double>(sum) - share * static_cast<double>(total), variance, 2);
  }
  // ways[k][s]: the number of choices of k values whose ranks have the sum s.
  std::vector<std::vector<double>> ways(a.size() + 1, std::vector<double>(total + 1));
  ways[0][0] = 1;
  for (const std::size_t r : ranks)
    for (std::size_t k = a.size(); k > 0; --k)
      for (std::size_t s = total + 1; s-- > r;) ways[k][s] += ways[k - 1][s - r];
  std::vector<double>& all = ways.back();
  const double choices = std::accumulate(all.begin(), all.end(), 0.0);
  for (double& each : all) each /= choices;
  return two_sided(all, sum);
}

std::vector<double> adjusted(std::span<const double> p_values) {
  std::vector<std::size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return p_values[i]; });
  std::vector<double> result(p_values.size());
  double largest = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    largest = std::max(largest, p_values[order[i]] * static_cast<double>(order.size() - i));
    result[order[i]] = std::min(largest, 1.0);
  }
  return result;
}

Interval bootstrap(const std::function<double(Random&)>& draw) {
  Random random(1);
  std::vector<double> values;
  for (int i = 0; i < resamples; ++i) values.push_back(draw(random));
  std::ranges::sort(values);
  return {percentile(values, 2.5), percentile(values, 97.5)};
}

std::vector<double> resampled(std::span<const double> values, Random& random) {
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); ++i)
    result.push_back(values[random() % values.size()]);
  return result;
}

}  // namespace tutti::tool
