#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "losses/soft_rank_kernels.hpp"

// The action of one cell of scores on another: σ and its derivative as matrices between Chebyshev
// moments and Chebyshev series, and as sums of exponentials between far cells. Computed once; the
// same for every pool.

namespace tutti::internal::losses {

inline constexpr double cell_width = 2;  ///< In temperatures.

using Series = std::array<double, terms>;
using Matrix = std::array<double, terms * terms>;  // [source term][target term].

/// The action of a cell's moments on the series of a cell that is `distance` cells below it.
struct Action {
  Matrix value;  ///< σ. From cells above: σ - 1, so that errors are small relative to the numbers.
  Matrix slope;  ///< σ'.
};

/// Cells at this distance or less act through a matrix of their own.
inline constexpr std::int64_t near = 3;
const Action& action(std::int64_t distance);

/// Far cells are at least three empty cells away. There σ(-x) is the sum over i >= 1 of -(-1)^i
/// e^(-ix), and the terms after the eighth are below e^-54. A term is a product of the source's
/// part, the distance's and the target's, so all cells on one side act together: as sums of
/// exponentials, first the eight of the cells below, then those of the cells above.
inline constexpr std::size_t exponentials = terms / 2;

struct Far {
  Matrix gather;  ///< Maps a cell's moments to its sums of exponentials.
  Matrix value;   ///< Maps sums of exponentials to a series.
  Matrix slope;
};
const Far& far_field();

/// e^-64 is negligible beside 1 for any number of rows that fits in memory.
inline constexpr std::int64_t furthest = 32;

/// The factor of each exponential over `distance` cells.
const std::array<double, exponentials>& decay(std::int64_t distance);

/// The action of a row on itself as the matrices represent it, a series in its position. It is
/// subtracted again and must equal the added value exactly, because next to an isolated row nothing
/// else remains.
using Self = std::array<double, 2 * terms - 1>;
const Self& own_value();
const Self& own_slope();

}  // namespace tutti::internal::losses
