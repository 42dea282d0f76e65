#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "losses/order_statistics.hpp"

namespace tutti::internal::losses {

/// A pool that is too large, of which this rank may know a part.
struct Population {
  std::span<const std::int64_t> numbers;  ///< Of this rank's rows.
  std::span<const std::uint32_t> kinds;   ///< Their classes, below totals.size().
  std::span<const std::int64_t> totals;   ///< Rows of each class, on all ranks.
};

/// Which of this rank's rows are among `size` of all: of each class that occurs the first
/// max(1, size / (2 classes)) in a random order, then the first of the others in another one. The
/// orders follow from the seed, the call and the rows' numbers, so that all ranks draw alike and
/// the split does not matter. Where the classes alone are more than `size`, those are drawn from.
std::vector<std::uint8_t> subsample(const Population& population, std::int64_t size,
                                    std::uint64_t seed, std::int64_t call, const AddUp& add_up);

}  // namespace tutti::internal::losses
