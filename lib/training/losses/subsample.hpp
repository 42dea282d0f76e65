#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "losses/order_statistics.hpp"

namespace tutti::internal::losses {

/// A pool to be sampled. This rank holds all or part of it.
struct Population {
  std::span<const std::int64_t> numbers;  ///< Numbers of this rank's rows.
  std::span<const std::uint32_t> kinds;   ///< Classes of the rows, below totals.size().
  std::span<const std::int64_t> totals;   ///< Rows of each class, on all ranks.
};

/// Marks the rows of this rank that are in a sample of `size` rows of all ranks. With k classes
/// that occur, the sample has the first max(1, size / (2 k)) rows of each such class in a random
/// order, then the first of the other rows in another random order. If the first step takes more
/// than `size` rows, the sample is drawn from these rows. The orders depend only on the seed, the
/// call and the rows' numbers, so all ranks draw the same sample however the rows are split.
std::vector<std::uint8_t> subsample(const Population& population, std::int64_t size,
                                    std::uint64_t seed, std::int64_t call, const AddUp& add_up);

}  // namespace tutti::internal::losses
