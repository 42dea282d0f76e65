#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "losses/soft_rank_kernels.hpp"

// The action of one cell of scores on another, by σ and by its derivative. Near cells act through
// matrices from Chebyshev moments to Chebyshev series; far cells act through sums of exponentials.
// Computed once, because it is the same for every pool.

namespace tutti::internal::losses {

inline constexpr double cell_width = 2;  ///< In temperatures.

using Series = std::array<double, terms>;
using Matrix = std::array<double, terms * terms>;  // [source term][target term].

/// The action of a cell's moments on the series of the cell that is `distance` cells below.
struct Action {
  Matrix value;  ///< σ. From cells above: σ - 1, so that relative errors stay small.
  Matrix slope;  ///< σ'.
};

/// The largest distance at which a cell acts through its own matrix.
inline constexpr std::int64_t near = 3;
const Action& action(std::int64_t distance);

/// The number of exponentials of one side. At least three cells lie between far cells. There σ(-x)
/// is the sum over i >= 1 of -(-1)^i e^(-ix), and the terms after the eighth are below e^-54. Each
/// term is a product of a part of the source, one of the distance and one of the target. All cells
/// on one side therefore act together: as eight sums of exponentials of the cells below, then eight
/// of the cells above.
inline constexpr std::size_t exponentials = terms / 2;

struct Far {
  Matrix gather;  ///< Maps a cell's moments to its sums of exponentials.
  Matrix value;   ///< Maps sums of exponentials to a series.
  Matrix slope;
};
const Far& far_field();

/// From this distance on, an exponential is at most e^-64, which is negligible for any number of
/// rows that fits in memory.
inline constexpr std::int64_t furthest = 32;

/// Returns the factor of each exponential over `distance` cells.
const std::array<double, exponentials>& decay(std::int64_t distance);

/// The action of a row on itself as computed by the matrices, a series in the row's position. It is
/// subtracted, and must equal the added value exactly, because an isolated row has no other terms.
using Self = std::array<double, 2 * terms - 1>;
const Self& own_value();
const Self& own_slope();

}  // namespace tutti::internal::losses
