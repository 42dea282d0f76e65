#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "losses/order_statistics.hpp"

namespace tutti::internal::losses {

/// A pool to be sampled. This rank may hold a part of it.
struct Population {
  std::span<const std::int64_t> numbers;  ///< Numbers of this rank's rows.
  std::span<const std::uint32_t> kinds;   ///< Classes of the rows, below totals.size().
  std::span<const std::int64_t> totals;   ///< Rows of each class, on all ranks.
};

/// Returns which of this rank's rows are in a sample of `size` rows of all ranks. It has the first
/// max(1, size / (2 classes)) rows of each class that occurs, in a random order, then the first
/// other rows, in another random order. The orders depend on the seed, the call and the rows'
/// numbers only, so all ranks draw the same sample for any split. If the first step takes more than
/// `size` rows, the sample is drawn from those.
std::vector<std::uint8_t> subsample(const Population& population, std::int64_t size,
                                    std::uint64_t seed, std::int64_t call, const AddUp& add_up);

}  // namespace tutti::internal::losses
