#pragma once

#include <vector>

#include <tutti/backend/backend.hpp>

#include "group/validate.hpp"

namespace tutti::internal {

/// Collectives as sends and receives, for backends that do not have them. (The front makes a
/// barrier of an all_reduce.)
constexpr bool can_lower(Operation o) noexcept {
  return o == Operation::gather || o == Operation::scatter || o == Operation::all_to_all;
}

/// The batch for a checked operation, to be launched in_order. It includes empty blocks, so that
/// the numbers of a pair do not depend on the rows, and this rank's own block as a message to
/// itself.
std::vector<Op> to_point_to_point(const Op& op, const Bounds& bounds);

/// The same pairs without their arrays, for an operation that was refused.
std::vector<Op> refused_pairs(const Op& op, const Bounds& bounds);

}  // namespace tutti::internal
