#include <tutti/metrics.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/call.hpp"
#include "kernels/radix_sort.hpp"
#include "metrics/score_counts.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] metrics {
namespace {

using internal::metrics::Int128;
using internal::metrics::ScoreCounts;
using internal::metrics::Step;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double one = 0x1p100;

double real(Int128 number) noexcept {
  return static_cast<double>(number);
}

/// Cuts a number from 0 to 1 to a multiple of 2^-100. Such multiples are added without rounding, so
/// the order of the terms does not matter.
Int128 fixed(double number) noexcept {
  return static_cast<Int128>(number * one);
}

/// Calls f(step, the step before it).
template <typename F>
void for_steps(const ScoreCounts& counts, const F& f) {
  const auto steps = counts.steps();
  for (std::size_t i = 1; i < steps.size(); ++i) f(steps[i], steps[i - 1]);
}

/// Sum over the scores of (share of the positives) x (share of the negatives below; ties half).
Int128 auroc_of(const ScoreCounts& counts) {
  const double positives = real(counts.total().positive);
  const double negatives = real(counts.total().negative);
  Int128 sum = 0;
  if (positives == 0 || negatives == 0) return sum;
  for_steps(counts, [&](const Step& step, const Step& lower) {
    const auto here = step.positive - lower.positive;
    if (here == 0) return;
    const double below = real(lower.negative) + real(step.negative - lower.negative) / 2;
    sum += fixed(real(here) / positives * (below / negatives));
  });
  return sum;
}

/// The positive rows that a threshold just above `lower` retrieves, and their share of the rows
/// that it retrieves.
Int128 retrieved(const Step& total, const Step& lower) noexcept {
  return total.positive - lower.positive;
}
double precision(const Step& total, const Step& lower) noexcept {
  const auto positives = retrieved(total, lower);
  return positives == 0 ? 0 : real(positives) / real(total.all() - lower.all());
}

Int128 average_precision_of(const ScoreCounts& counts) {
  const auto& total = counts.total();
  Int128 sum = 0;
  for_steps(counts, [&](const Step& step, const Step& lower) {
    const auto here = step.positive - lower.positive;
    if (here != 0) sum += fixed(real(here) / real(total.positive) * precision(total, lower));
  });
  return sum;
}

/// The most positive rows that a threshold retrieves with this precision.
Int128 retrieved_at(const ScoreCounts& counts, double wanted) {
  const auto steps = counts.steps();
  for (std::size_t i = 1; i < steps.size(); ++i)
    if (precision(counts.total(), steps[i - 1]) >= wanted)
      return retrieved(counts.total(), steps[i - 1]);
  return 0;
}

/// The key of the first step for which reached() is true, as for all later ones; 0, which is no
/// key of a number, if another rank has it.
template <typename Reached>
Int128 first_key(const ScoreCounts& counts, const Reached& reached) {
  const auto steps = counts.steps();
  if (reached(steps.front())) return 0;
  const auto found = std::ranges::partition_point(steps, std::not_fn(reached));
  return found == steps.end() ? 0 : Int128{found->key};
}

/// The quantile between the scores at positions floor and ceil of `index`.
struct Quantile {
  double weight;     ///< Of the score at the second position.
  Int128 low, high;  ///< Keys.

  double value() const {
    if (low == 0) return nan;
    const double a = internal::score_of(static_cast<std::uint64_t>(low));
    const double b = internal::score_of(static_cast<std::uint64_t>(high));
    if (std::isinf(a) || std::isinf(b)) return a + b;              // NaN if they are opposite.
    if ((a < 0) != (b < 0)) return a * (1 - weight) + b * weight;  // Where b - a may overflow.
    return weight < 0.5 ? a + weight * (b - a) : b - (b - a) * (1 - weight);
  }
};

Quantile quantile_of(const ScoreCounts& counts, double q, bool weighted) {
  const auto total = counts.total().all();
  if (weighted) {
    const auto key = first_key(counts, [&](const Step& step) {
      return step.all() != 0 && real(step.all()) / real(total) >= q;
    });
    return {0, key, key};
  }
  const double index = q * real(std::max<Int128>(total - 1, 0));
  const auto key_at = [&](double position) {
    return first_key(counts, [&](const Step& step) { return real(step.all()) > position; });
  };
  return {index - std::floor(index), key_at(std::floor(index)), key_at(std::ceil(index))};
}

void check_share(std::string_view what, std::span<const double> values) {
  for (const double value : values)
    if (!(value >= 0 && value <= 1))
      internal::failf(Errc::invalid_argument, "{} {} is not from 0 to 1", what, value);
}

BinaryMetrics compute(ProcessGroup& group, std::string_view caller, const ScoredRows& rows,
                      std::span<const double> precisions, std::span<const double> quantiles,
                      const CallOptions& options, const std::function<void()>& fill = {}) try {
  const auto words = fmt::format("{} weights, precisions [{}], quantiles [{}]",
                                 rows.weighted() ? "with" : "without", fmt::join(precisions, ", "),
                                 fmt::join(quantiles, ", "));
  const auto check = [&] {
    check_share("precision", precisions);
    check_share("quantile", quantiles);
    if (fill) fill();
  };
  const ScoreCounts counts(group, caller, words, check, rows, options);
  std::vector<Quantile> found;
  std::vector<Int128> numbers{auroc_of(counts), average_precision_of(counts)};
  for (const double p : precisions) numbers.push_back(retrieved_at(counts, p));
  for (const double q : quantiles) {
    found.push_back(quantile_of(counts, q, rows.weighted()));
    numbers.insert(numbers.end(), {found.back().low, found.back().high});
  }
  counts.combine(numbers, 2);
  const auto positives = counts.total().positive;
  BinaryMetrics result;
  if (positives != 0 && counts.total().negative != 0) result.auroc = real(numbers[0]) / one;
  if (positives != 0) result.average_precision = real(numbers[1]) / one;
  auto next = numbers.begin() + 2;
  for (std::size_t i = 0; i < precisions.size(); ++i, ++next)
    result.recalls.push_back(positives == 0 ? nan : real(*next) / real(positives));
  for (auto& quantile : found) {
    quantile.low = *next++;
    quantile.high = *next++;
    result.quantiles.push_back(quantile.value());
  }
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace

BinaryMetrics binary_metrics(ProcessGroup& group, const ScoredRows& rows,
                             const BinaryOptions& further, const CallOptions& options) {
  return compute(group, "binary_metrics", rows, further.precisions, further.quantiles, options);
}

double auroc(ProcessGroup& group, const ScoredRows& rows, const CallOptions& options) {
  return compute(group, "auroc", rows, {}, {}, options).auroc;
}

double average_precision(ProcessGroup& group, const ScoredRows& rows, const CallOptions& options) {
  return compute(group, "average_precision", rows, {}, {}, options).average_precision;
}

double recall_at_precision(ProcessGroup& group, const ScoredRows& rows, double precision,
                           const CallOptions& options) {
  return compute(group, "recall_at_precision", rows, {&precision, 1}, {}, options).recalls[0];
}

std::vector<double> quantiles(ProcessGroup& group, const ScoredRows& rows,
                              std::span<const double> q, const CallOptions& options) {
  return compute(group, "quantiles", rows, {}, q, options).quantiles;
}

std::vector<double> quantiles(ProcessGroup& group, const ConstTensorView& values,
                              std::span<const double> q, const CallOptions& options) {
  ScoredRows rows;
  const auto fill = [&] {
    const auto n = values.shape.numel();
    const std::vector<std::uint8_t> targets(static_cast<std::size_t>(n));
    rows.add({values.data, values.dtype, {n}, values.device}, targets);
  };
  return compute(group, "quantiles", rows, {}, q, options, fill).quantiles;
}

}  // namespace metrics
}  // namespace tutti
