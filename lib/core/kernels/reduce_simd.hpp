#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/reduce_types.hpp"

// The vector kernels. Declared only in builds with Highway, where reduce_simd.cpp also defines the
// functions of kernel_target.hpp.

namespace tutti::internal::simd {

/// The kernels of one instruction set. An entry is null if the scalar kernel is as fast or the pair
/// is undefined.
struct Kernels {
  std::int64_t target = 0;  ///< Highway's number of the target.
  std::array<std::array<ReduceFn, reduce_op_count>, dtype_count> reduce{};
  std::array<std::array<FoldFn, reduce_op_count>, dtype_count> fold{};
  // Return the number of converted elements, a multiple of a vector's.
  std::size_t (*widen_halves)(void* out, const void* in, std::size_t n) noexcept = nullptr;
  std::size_t (*narrow_halves)(void* out, const void* in, std::size_t n) noexcept = nullptr;
};

/// Returns the kernels of the best instruction set of this machine, or of the one that
/// choose_kernel_target() has selected.
const Kernels& kernels() noexcept;

/// The type of fold_reproducible() for the sums of one dtype. `scales`: empty unless premul_sum.
using SumFn = void (*)(void* out, std::span<const void* const> inputs,
                       std::span<const double> scales, bool average, std::size_t n) noexcept;

/// The kernel of the same instruction set for reproducible sums, or null.
SumFn reproducible_sum(DType dtype) noexcept;

}  // namespace tutti::internal::simd
