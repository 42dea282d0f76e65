#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <tutti/losses/loss.hpp>

namespace tutti::internal::losses {

/// A request for order statistics of one list, which is spread over the ranks.
struct Select {
  std::span<const double> scores;       ///< This rank's part, in any order. Finite.
  std::vector<std::int64_t> indices{};  ///< Positions from 0, below the length of the whole list.
};

/// Adds up an array over the ranks, in place.
using AddUp = std::function<void(std::span<std::int64_t> counts)>;

/// The exact order statistics of each list, the same on every rank. Counts keys of `bytes` bytes (4
/// if every score is a float; otherwise 8) byte by byte from the highest. Calls add_up `bytes`
/// times with 256 counts per position and exchanges nothing else. -0 is below 0.
std::vector<std::vector<double>> order_statistics(std::span<const Select> lists, int bytes,
                                                  const AddUp& add_up);

/// The position of a quantile among n > 0 rows: between `low` and `high`, by `weight` above low.
struct QuantileIndex {
  std::int64_t low = 0, high = 0;
  double weight = 0;
};
/// The position as torch.quantile (2.15) computes it: q rounded to float if in_float, the product
/// in double.
QuantileIndex quantile_index(double q, std::int64_t n, bool in_float);

/// A request for quantiles of one list, which is spread over the ranks.
struct Quantiles {
  std::span<const double> scores{};  ///< This rank's part.
  std::int64_t total = 0;            ///< Length of the whole list; above 0 if q is not empty.
  std::vector<double> q{};
};
/// One value for each q of each list, the same on every rank.
std::vector<std::vector<double>> quantiles_of(std::span<const Quantiles> lists,
                                              tutti::losses::Interpolation how, bool in_float,
                                              const AddUp& add_up);

}  // namespace tutti::internal::losses
