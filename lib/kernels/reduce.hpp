#pragma once

#include <cstddef>
#include <span>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "kernels/reduce_types.hpp"

// Reductions over host memory, for every dtype. Arrays need no alignment. `n` counts elements.
// Integers wrap; min and max propagate NaN and order -0 below +0; booleans are read as
// "not zero" and written as 0 or 1. The accumulation type is float for f32 and the half types,
// double for f64, the type itself for integers; complex numbers are two floats or doubles each.
// Results do not depend on the instruction set.

namespace tutti::internal {

/// Null if undefined: avg, premul_sum and custom, bitwise operations of floats, and all kinds but
/// sum of complex numbers.
ReduceFn reduce_fn(DType dtype, ReduceOp::Kind kind) noexcept;

/// True if fold() supports the pair. avg: numbers (integers truncate toward zero); premul_sum:
/// floats and complex; band, bor, bxor: integers and booleans; sum: everything; product, min, max:
/// everything but complex; custom: nothing, see fold_custom().
bool can_reduce(DType dtype, ReduceOp::Kind kind) noexcept;

/// out[i] = ((in0 op in1) op in2) ..., a left fold in the accumulation type, rounded once.
/// avg divides the sum by the number of inputs; premul_sum first multiplies input k by scales[k]
/// (rounded to the accumulation type; no fused multiply-add). `scales` is empty for other kinds.
/// There is at least one input. out may be one of the inputs, element for element. With one input
/// it is a copy (premul_sum: scaled; booleans: normalised).
void fold(DType dtype, ReduceOp::Kind kind, void* out, std::span<const void* const> inputs,
          std::span<const double> scales, std::size_t n) noexcept;

/// fold() with the function of ReduceOp::custom(), on copies aligned to 64 bytes. One input is
/// copied. @throws Error backend with the text of an exception of the function.
void fold_custom(DType dtype, const ReduceOp& op, void* out, std::span<const void* const> inputs,
                 std::size_t n);

/// data[i] /= by, as avg does it: in the accumulation type, integers truncate toward zero. No
/// booleans.
void divide(DType dtype, void* data, std::size_t n, std::size_t by) noexcept;

/// Fills with the identity e, op(e, x) == x: 0, 1, all ones; for min the largest value (+inf; 448
/// in f8e4m3), for max the smallest. avg and custom have none: 0.
void fill_identity(DType dtype, ReduceOp::Kind kind, void* out, std::size_t n) noexcept;

}  // namespace tutti::internal

/// The reference of the vector kernels' tests, and the kernels without Highway.
namespace tutti::internal::scalar {

ReduceFn reduce_fn(DType dtype, ReduceOp::Kind kind) noexcept;
void fold(DType dtype, ReduceOp::Kind kind, void* out, std::span<const void* const> inputs,
          std::span<const double> scales, std::size_t n) noexcept;

}  // namespace tutti::internal::scalar
