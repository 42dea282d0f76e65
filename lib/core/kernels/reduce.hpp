#pragma once

#include <cstddef>
#include <span>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "kernels/reduce_types.hpp"

// Reductions over host memory, for every dtype. Arrays need no alignment. `n` is a number of
// elements. Integers wrap. min and max propagate NaN and order -0 below +0. Booleans are read as
// "not zero" and written as 0 or 1. The accumulation type is float for f32 and smaller floats,
// double for f64, bool for booleans, and the type itself for integers; a complex number is two
// floats or two doubles.
// Results do not depend on the instruction set.

namespace tutti::internal {

/// Returns the function for two arrays. Null for avg, premul_sum and custom, for bitwise operations
/// of floats, and for complex numbers unless the kind is sum.
ReduceFn reduce_fn(DType dtype, ReduceOp::Kind kind) noexcept;

/// True if fold() supports the pair:
/// sum: all dtypes; prod, min, max: all but complex; band, bor, bxor: integers and booleans;
/// avg: numbers (integers truncate toward zero); premul_sum: floats and complex numbers;
/// custom: none, see fold_custom().
bool can_reduce(DType dtype, ReduceOp::Kind kind) noexcept;

/// out[i] = ((in0 op in1) op in2) ..., a left fold in the accumulation type, rounded once. avg
/// divides the sum by the number of inputs. premul_sum first multiplies input k by scales[k]
/// (rounded to the accumulation type; no fused multiply-add); `scales` is empty for other kinds. At
/// least one input is required. out may be one of the inputs, element for element. One input is
/// copied (premul_sum: scaled; booleans: normalised).
[[gnu::visibility("default")]] void fold(DType dtype, ReduceOp::Kind kind, void* out,
                                         std::span<const void* const> inputs,
                                         std::span<const double> scales, std::size_t n) noexcept;

/// Folds as fold() does, with the function of ReduceOp::custom(), on copies aligned to 64 bytes.
/// One input is copied.
/// @throws Error backend if the function throws; its text is that of the exception.
void fold_custom(DType dtype, const ReduceOp& op, void* out, std::span<const void* const> inputs,
                 std::size_t n);

/// data[i] /= by, in the accumulation type; integers truncate toward zero, as in avg. No booleans.
void divide(DType dtype, void* data, std::size_t n, std::size_t by) noexcept;

/// Convert n elements between f16 and f32, rounding to nearest even. The arrays do not overlap.
void widen_halves(void* out, const void* in, std::size_t n) noexcept;
void narrow_halves(void* out, const void* in, std::size_t n) noexcept;

/// Fills with the identity e, for which op(e, x) == x: 0, 1, or all bits set; for min the largest
/// value (+inf; 448 in f8e4m3), for max the smallest. Fills with 0 for avg and custom, which have
/// none.
void fill_identity(DType dtype, ReduceOp::Kind kind, void* out, std::size_t n) noexcept;

}  // namespace tutti::internal

/// The kernels without Highway, which are also the reference in tests of the vector kernels.
namespace tutti::internal::scalar {

ReduceFn reduce_fn(DType dtype, ReduceOp::Kind kind) noexcept;
void fold(DType dtype, ReduceOp::Kind kind, void* out, std::span<const void* const> inputs,
          std::span<const double> scales, std::size_t n) noexcept;

}  // namespace tutti::internal::scalar
