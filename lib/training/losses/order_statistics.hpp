#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <tutti/losses/loss.hpp>

namespace tutti::internal::losses {

/// A request for order statistics of one list whose parts are on the ranks.
struct Select {
  std::span<const double> scores;       ///< This rank's part, finite, in any order.
  std::vector<std::int64_t> indices{};  ///< Positions in the sorted whole list, from 0.
  /// Copies of each score in the list, 0 or more, fewer than 2^63 in all; empty: one of each.
  std::span<const std::int64_t> copies{};
};

/// Adds up an array over the ranks, in place.
using AddUp = std::function<void(std::span<std::int64_t> counts)>;

/// Returns the exact order statistics of each list, equal on every rank. Keys have `bytes` bytes: 4
/// if every score is a float, otherwise 8. Round k counts the values of byte k, highest first.
/// Calls add_up once per round with 256 counts per position and exchanges nothing else. -0 is below
/// 0.
std::vector<std::vector<double>> order_statistics(std::span<const Select> lists, int bytes,
                                                  const AddUp& add_up);

/// The position of a quantile among n > 0 rows: between `low` and `high`; `high` has the weight
/// `weight`.
struct QuantileIndex {
  std::int64_t low = 0, high = 0;
  double weight = 0;
};
/// Computes the position as torch.quantile (2.15) does: rounds q to float if in_float, and
/// multiplies in double.
QuantileIndex quantile_index(double q, std::int64_t n, bool in_float);

/// A request for quantiles of one list whose parts are on the ranks.
struct Quantiles {
  std::span<const double> scores{};  ///< This rank's part.
  std::int64_t total = 0;            ///< Length of the whole list; above 0 if q is not empty.
  std::vector<double> q{};
  std::span<const double> weights{};  ///< Of the scores, for Budget::weight.
};
struct QuantileRule {
  tutti::losses::Interpolation how{};
  tutti::losses::Budget budget{};
  bool in_float = false;
};
using AddUpWeights = std::function<void(std::span<double> weights)>;
/// Returns one value for each q of each list, equal on every rank. With Budget::weight, calls
/// add_up_weights once, and returns no value for a list whose weights are all 0.
std::vector<std::vector<double>> quantiles_of(std::span<const Quantiles> lists,
                                              const QuantileRule& rule, const AddUp& add_up,
                                              const AddUpWeights& add_up_weights);

/// A request for weighted quantiles of one list whose parts are on the ranks.
struct WeightedQuantiles {
  std::span<const double> scores{};   ///< This rank's part.
  std::span<const double> weights{};  ///< Of the scores; finite, 0 or more.
  double mass = 0;                    ///< Sum of all weights; above 0 if q is not empty.
  std::vector<double> q{};
};
/// Returns for each q the lowest score at which the sum of the weights, from the lowest score on,
/// is at least q - 2^-32 times the sum of all. Weights are rounded to multiples of 2^-50 or less of
/// the sum, whose sums do not depend on their order. Calls add_up once more than
/// order_statistics().
std::vector<std::vector<double>> weighted_quantiles_of(std::span<const WeightedQuantiles> lists,
                                                       bool in_float, const AddUp& add_up);

}  // namespace tutti::internal::losses
