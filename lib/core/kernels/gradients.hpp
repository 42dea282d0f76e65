#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tutti/dtype.hpp>

#include "kernels/reduce_types.hpp"

// Elementwise parts of gradients in host memory, for f16, bf16, f32 and f64. Half types are
// computed in float. Arrays need no alignment. `n` is a number of elements.

namespace tutti::internal {

/// True for dtypes that have gradients. `dtype` may be a number that is not an enumerator.
constexpr bool has_gradient(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}
/// Calls f(T{}), where T is the storage type of a dtype that has gradients.
template <typename F>
void visit_gradient(DType dtype, const F& f) {
  visit_type(dtype, [&]<typename T>(T zero) {
    if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, Float16> ||
                  std::is_same_v<T, BFloat16>)
      f(zero);
  });
}

/// data[i] *= by.
void scale(DType dtype, void* data, std::size_t n, double by) noexcept;

/// out[i] = a[i] * b[i]; out may be a or b.
void multiply(DType dtype, void* out, const void* a, const void* b, std::size_t n) noexcept;

/// marks[i] = 1 if in[i] equals extreme[i], the minimum or maximum over all ranks, else 0. Zeros of
/// different sign count as equal, and so do NaNs.
void mark_ties(DType dtype, const void* in, const void* extreme, std::int32_t* marks,
               std::size_t n) noexcept;

/// weights[i] = 1 / ties[i] where in[i] equals extreme[i], else 0. `ties`: the sum of all ranks'
/// marks.
void share_ties(DType dtype, const void* in, const void* extreme, const std::int32_t* ties,
                void* weights, std::size_t n) noexcept;

}  // namespace tutti::internal
