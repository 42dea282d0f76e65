#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "losses/soft_rank_kernels.hpp"

// How a cell of scores acts on another one: the kernel σ and its derivative as matrices between
// Chebyshev moments and Chebyshev series, and as sums of exponentials between far cells. Computed
// once; the same for every pool.

namespace tutti::internal::losses {

inline constexpr double cell_width = 2;  ///< In temperatures.

using Series = std::array<double, terms>;
using Matrix = std::array<double, terms * terms>;  // [source term][target term].

/// How the moments of a cell act on the series of one that is `distance` cells below it.
struct Action {
  Matrix value;  ///< σ; of a cell above, σ - 1, so that errors are small where the numbers are.
  Matrix slope;  ///< σ'.
};

/// Cells at this distance or less act by a matrix of their own.
inline constexpr std::int64_t near = 3;
const Action& action(std::int64_t distance);

/// Further cells are three empty cells or more away, and there σ(-x) is the sum over i >= 1 of
/// -(-1)^i e^(-ix): eight terms are worth e^-54. A term is a product of the source's part, the
/// distance's and the target's, so that all cells on one side act together: as sums of
/// exponentials, first the eight of the cells below, then those of the cells above.
inline constexpr std::size_t exponentials = terms / 2;

struct Far {
  Matrix gather;  ///< From the moments of a cell to its sums of exponentials.
  Matrix value;   ///< From sums of exponentials to a series.
  Matrix slope;
};
const Far& far_field();

/// e^-64 is nothing beside 1 for any number of rows that fits in memory.
inline constexpr std::int64_t furthest = 32;

/// What is left of each exponential `distance` cells further.
const std::array<double, exponentials>& decay(std::int64_t distance);

/// Self-interaction of a row as the matrices represent it, a series in its place. What is taken out
/// again has to be what was put in, because next to an isolated row nothing else is left.
using Self = std::array<double, 2 * terms - 1>;
const Self& own_value();
const Self& own_slope();

}  // namespace tutti::internal::losses
