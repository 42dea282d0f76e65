#pragma once

#include <array>
#include <complex>
#include <type_traits>

#include <tutti/dtype.hpp>

namespace tutti::test {

inline constexpr std::array<DType, dtype_count> all_dtypes{
    DType::u8,  DType::i8,     DType::i16,     DType::u16,       DType::i32,       DType::u32,
    DType::i64, DType::u64,    DType::boolean, DType::f16,       DType::bf16,      DType::f32,
    DType::f64, DType::f8e4m3, DType::f8e5m2,  DType::complex64, DType::complex128};

template <typename T>
inline constexpr bool is_small_float =
    std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Float8E4M3> ||
    std::is_same_v<T, Float8E5M2>;

template <typename T>
inline constexpr bool is_float_type = is_small_float<T> || std::is_floating_point_v<T>;

template <typename T>
inline constexpr bool is_complex_type =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// The type in which elements of T are combined.
template <typename T>
using Wide = std::conditional_t<is_small_float<T>, float, T>;

}  // namespace tutti::test
