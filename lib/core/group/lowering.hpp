#pragma once

#include <vector>

#include <tutti/backend/backend.hpp>

#include "group/validate.hpp"

namespace tutti::internal {

/// True for collectives that the front makes from sends and receives, for backends that lack them.
/// (The front makes a barrier from an all_reduce.)
constexpr bool can_lower(Operation o) noexcept {
  return o == Operation::gather || o == Operation::scatter || o == Operation::all_to_all;
}

/// Returns the sends and receives that replace a checked operation, to be launched in_order. They
/// include empty blocks, so that message numbers do not depend on the rows, and this rank's own
/// block as a message to itself.
std::vector<Op> to_point_to_point(const Op& op, const Bounds& bounds);

/// Returns the sends and receives that this rank's peers expect of a refused operation, without
/// arrays; none if the root is not a rank.
std::vector<Op> refused_pairs(const Op& op, const Bounds& bounds);

}  // namespace tutti::internal
