#pragma once

#include <cstddef>
#include <span>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

// Sums whose bits depend on the multiset of addends alone: not on their order, on partial sums, or
// on the instruction set. CallOptions::reproducible has the definition for users.
//
// A bin has the 16 binades (f64: 32) of the biased exponents E with equal E >> 4 (f64: E >> 5).
// Let k be the bin of the largest addend. Each addend is rounded, ties to even, to a multiple of
//   q = 2^(16 (k - 2) - 126)        f64: q = 2^(32 (k - 2) - 1022)
// and the multiples are added exactly. The result is this sum, rounded once to the dtype. With N
// addends, its error is at most N 2^-32 max|x| (f64: N 2^-64 max|x|) and half a unit in the last
// place. NaN, or infinities of both signs, give the canonical NaN. No partial sum overflows.
// Addends of f16, f8e4m3 and f8e5m2 are multiples of q, so their sums are exact before the last
// rounding.
// The algorithm is that of ReproBLAS (Ahrens, Demmel, Nguyen, "Algorithms for Efficient
// Reproducible Floating Point Summation", 2020), with integers as accumulators and a bin for each
// element.

#ifdef __FAST_MATH__
#error "reproducible sums need IEEE arithmetic; compile without -ffast-math"
#endif

namespace tutti::internal {

/// The largest number of addends of one sum.
constexpr std::size_t most_addends = 4095;

/// True if fold_reproducible() computes this reduction: sum, avg and premul_sum of floats and
/// complex numbers.
bool has_reproducible_sum(DType dtype, ReduceOp::Kind kind) noexcept;

/// As fold(), with the sum above in place of the left fold. premul_sum rounds each product to the
/// accumulation type; avg divides the sum, rounded to the accumulation type. At most most_addends
/// inputs. Rounds to nearest and keeps subnormal numbers, whatever the thread's control register
/// says.
/// @pre has_reproducible_sum(dtype, kind)
void fold_reproducible(DType dtype, ReduceOp::Kind kind, void* out,
                       std::span<const void* const> inputs, std::span<const double> scales,
                       std::size_t n) noexcept;

}  // namespace tutti::internal

/// The kernel without Highway: integers alone, from the sum to its rounding.
namespace tutti::internal::scalar {

void fold_reproducible(DType dtype, ReduceOp::Kind kind, void* out,
                       std::span<const void* const> inputs, std::span<const double> scales,
                       std::size_t n) noexcept;

}  // namespace tutti::internal::scalar
