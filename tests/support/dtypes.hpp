#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <tutti/dtype.hpp>

namespace tutti::test {

inline constexpr std::array<DType, dtype_count> all_dtypes{
    DType::u8,  DType::i8,   DType::i32, DType::u32, DType::i64,    DType::u64,   DType::boolean,
    DType::f16, DType::bf16, DType::f32, DType::f64, DType::f8e4m3, DType::f8e5m2};

/// Calls f<T>() with the C++ type of `dtype`.
template <typename F>
decltype(auto) with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    case DType::i8:
      return f.template operator()<std::int8_t>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::u32:
      return f.template operator()<std::uint32_t>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    case DType::u64:
      return f.template operator()<std::uint64_t>();
    case DType::boolean:
      return f.template operator()<bool>();
    case DType::f16:
      return f.template operator()<Float16>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::f8e4m3:
      return f.template operator()<Float8E4M3>();
    case DType::f8e5m2:
      return f.template operator()<Float8E5M2>();
  }
  throw std::logic_error("no such dtype");
}

template <typename T>
inline constexpr bool is_small_float =
    std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Float8E4M3> ||
    std::is_same_v<T, Float8E5M2>;

template <typename T>
inline constexpr bool is_float_type = is_small_float<T> || std::is_floating_point_v<T>;

/// The type in which elements of T are combined.
template <typename T>
using Wide = std::conditional_t<is_small_float<T>, float, T>;

}  // namespace tutti::test
