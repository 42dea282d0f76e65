#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/backend/op.hpp>

#include "collectives/wire.hpp"

// All ranks compute the same bits: either one rank reduces an element and sends the result, or all
// ranks combine the same numbers in the same order.

namespace tutti::collectives {

/// Runs this rank's part of one collective. A table chooses the algorithm by the operation, its
/// bytes, the number of ranks and the kind of the wire. Returns when this rank's result is complete
/// and the wire has read the data to send.
void run_collective(Wire& wire, const Op& op, bool order_fixed);

/// The rows of the table for a kind of wire as text, a line per row.
std::string describe_table(bool wakes_a_thread);

/// Described in functions.hpp.
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

/// Runs this rank's part with a given algorithm, for tests. @throws Error backend if the table has
/// no such algorithm for the operation.
void run_collective(Wire& wire, const Op& op, Algorithm algorithm);

}  // namespace tutti::collectives
