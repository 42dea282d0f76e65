#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/backend/op.hpp>

#include "collectives/wire.hpp"

// All ranks compute the same bits: either one rank reduces an element and the other ranks get its
// result, or all of them combine the same numbers in the same way.

namespace tutti::collectives {

/// Runs this rank's part of one collective, with the algorithm that a table gives for the
/// operation, its bytes and the number of ranks. Returns when this rank's result is there and the
/// transport has read what it sends.
void run_collective(Wire& wire, const Op& op, bool order_fixed);

/// The table in words, a line per row.
std::string describe_table();

/// Each is described in functions.hpp.
enum class Algorithm : std::uint8_t {
  direct,
  recursive_doubling,
  ring,
  slices,
  binomial_tree,
  chain,
  dissemination,
};
std::string_view name_of(Algorithm algorithm) noexcept;

/// For tests: the same with an algorithm of the caller's choice.
/// @throws Error backend if the table has no such algorithm for the operation.
void run_collective(Wire& wire, const Op& op, Algorithm algorithm);

}  // namespace tutti::collectives
