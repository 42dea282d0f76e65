#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include <tutti/format.hpp>
#include <tutti/half.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Element types. `boolean` is one byte, 0 or 1. The f8 types are OCP 8-bit floats:
/// f8e4m3 has no infinity (its largest value is 448), f8e5m2 has one. complex64 is two f32 and
/// complex128 two f64: the real part, then the imaginary part.
enum class DType : std::uint8_t {
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  boolean,
  f16,
  bf16,
  f32,
  f64,
  f8e4m3,
  f8e5m2,
  complex64,
  complex128
};

/// The number of dtypes; their values begin at 0.
inline constexpr int dtype_count = static_cast<int>(DType::complex128) + 1;

/// Returns `f.operator()<T>()`, where T is the C++ type of `t`. `t` must be an enumerator.
template <typename F>
constexpr decltype(auto) visit_dtype(DType t, F&& f) {
  switch (t) {
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    case DType::i8:
      return f.template operator()<std::int8_t>();
    case DType::i16:
      return f.template operator()<std::int16_t>();
    case DType::u16:
      return f.template operator()<std::uint16_t>();
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
    case DType::complex64:
      return f.template operator()<std::complex<float>>();
    case DType::complex128:
      return f.template operator()<std::complex<double>>();
  }
  __builtin_unreachable();
}

/// Bytes per element; 0 for a value that is not an enumerator.
constexpr std::size_t size_of(DType t) noexcept {
  if (static_cast<int>(t) >= dtype_count) return 0;
  // The capture avoids a warning of nvcc 13.0 about a template lambda without one.
  return visit_dtype(t, [&]<typename T>() { return sizeof(T); });
}

/// True for f16, bf16, f32, f64 and the f8 types.
constexpr bool is_float(DType t) noexcept {
  return t >= DType::f16 && t <= DType::f8e5m2;
}
/// True for u8 to u64; false for boolean.
constexpr bool is_integer(DType t) noexcept {
  return t < DType::boolean;
}
/// True for complex64 and complex128.
constexpr bool is_complex(DType t) noexcept {
  return t == DType::complex64 || t == DType::complex128;
}

/// The name that the tool and error texts print: "f32", "boolean", ...
std::string_view name_of(DType t) noexcept;

/// The inverse of name_of(); also accepts "bool". Empty for an unknown name.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

/// The dtype of T; empty if T has none. Types with a dtype: std::byte (u8), bool, integers of 1, 2,
/// 4 and 8 bytes except `char`, float, double, their std::complex, and the types of half.hpp.
template <typename T>
consteval std::optional<DType> find_dtype() {
  if constexpr (std::same_as<T, bool>) return DType::boolean;
  if constexpr (std::same_as<T, Float16>) return DType::f16;
  if constexpr (std::same_as<T, BFloat16>) return DType::bf16;
  if constexpr (std::same_as<T, Float8E4M3>) return DType::f8e4m3;
  if constexpr (std::same_as<T, Float8E5M2>) return DType::f8e5m2;
  if constexpr (std::same_as<T, float>) return DType::f32;
  if constexpr (std::same_as<T, double>) return DType::f64;
  if constexpr (std::same_as<T, std::complex<float>>) return DType::complex64;
  if constexpr (std::same_as<T, std::complex<double>>) return DType::complex128;
  if constexpr (std::same_as<T, std::byte>) return DType::u8;
  if constexpr (std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>) {
    if constexpr (sizeof(T) == 1) return std::signed_integral<T> ? DType::i8 : DType::u8;
    if constexpr (sizeof(T) == 2) return std::signed_integral<T> ? DType::i16 : DType::u16;
    if constexpr (sizeof(T) == 4) return std::signed_integral<T> ? DType::i32 : DType::u32;
    if constexpr (sizeof(T) == 8) return std::signed_integral<T> ? DType::i64 : DType::u64;
  }
  return std::nullopt;
}

/// A type that has a dtype: see find_dtype(). May be const.
template <typename T>
concept Element = find_dtype<std::remove_cv_t<T>>()
.has_value();

/// The dtype of an Element.
template <Element T>
inline constexpr DType dtype_of = *find_dtype<std::remove_cv_t<T>>();

}  // namespace tutti
