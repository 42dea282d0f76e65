#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <tutti/losses/loss.hpp>

namespace tutti::internal::losses {

/// The requested order statistics of one list, whose parts are on the ranks.
struct Select {
  std::span<const double> scores;       ///< This rank's part, in any order. Finite.
  std::vector<std::int64_t> indices{};  ///< From 0, below the length of the whole list.
};

/// Adds up an array over the ranks, in place.
using AddUp = std::function<void(std::span<std::int64_t> counts)>;

/// The exact order statistics of each list, the same on every rank. Keys of `bytes` bytes (4: every
/// score is a float; 8) are counted byte by byte from the highest: so many calls of add_up with 256
/// counts per index. Nothing else is exchanged. -0 is below 0.
std::vector<std::vector<double>> order_statistics(std::span<const Select> lists, int bytes,
                                                  const AddUp& add_up);

/// Where a quantile lies among n > 0 rows: between indices `low` and `high`, `weight` above low.
struct QuantileIndex {
  std::int64_t low = 0, high = 0;
  double weight = 0;
};
/// As torch.quantile (2.15) computes it: q rounded to a float when in_float, the product in double.
QuantileIndex quantile_index(double q, std::int64_t n, bool in_float);

/// The requested quantiles of one list, whose parts are on the ranks.
struct Quantiles {
  std::span<const double> scores{};  ///< This rank's part.
  std::int64_t total = 0;            ///< Of the whole list, above 0 where there are any q.
  std::vector<double> q{};
};
/// One value for each q of each list, the same on every rank.
std::vector<std::vector<double>> quantiles_of(std::span<const Quantiles> lists,
                                              tutti::losses::Interpolation how, bool in_float,
                                              const AddUp& add_up);

}  // namespace tutti::internal::losses
