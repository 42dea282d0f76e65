#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/reduce_types.hpp"

// The reductions of single elements. All functions except load() and store() are constexpr, because
// nvcc compiles constexpr functions for host and device.

namespace tutti::internal {

/// The accumulator type of elements stored as T.
template <typename T>
struct Accumulation {
  using type = float;
};
template <typename T>
requires std::is_arithmetic_v<T>
struct Accumulation<T> {
  using type = T;
};
template <ComplexStorage T>
struct Accumulation<T> {
  using type = T;
};
template <>
struct Accumulation<Boolean> {
  using type = bool;
};
template <typename T>
using Acc = typename Accumulation<T>::type;

template <typename T>
constexpr Acc<T> widen(T stored) noexcept {
  if constexpr (BooleanStorage<T>) {
    return stored.byte != 0;
  } else {
    return static_cast<Acc<T>>(stored);
  }
}

template <typename T>
constexpr T narrow(Acc<T> value) noexcept {
  return T{value};
}

// memcpy, because the address may be unaligned. Compilers emit a plain load.
template <typename T>
Acc<T> load(const std::byte* from) noexcept {
  T stored;
  std::memcpy(static_cast<void*>(&stored), from, sizeof stored);
  return widen(stored);
}

template <typename T>
void store(std::byte* to, Acc<T> value) noexcept {
  const T stored = narrow<T>(value);
  std::memcpy(to, &stored, sizeof stored);
}

template <ReduceOp::Kind kind>
constexpr bool apply(bool a, bool b) noexcept {
  using enum ReduceOp::Kind;
  if constexpr (kind == band || kind == min || kind == prod) return a && b;
  if constexpr (kind == bor || kind == max || kind == sum) return a || b;
  if constexpr (kind == bxor) return a != b;
}

template <ReduceOp::Kind kind, std::integral T>
constexpr T apply(T a, T b) noexcept {
  using enum ReduceOp::Kind;
  using Wrapping = std::make_unsigned_t<T>;  // Signed overflow is undefined.
  const auto x = static_cast<Wrapping>(a);
  const auto y = static_cast<Wrapping>(b);
  if constexpr (kind == sum || kind == avg) return static_cast<T>(x + y);
  if constexpr (kind == prod) return static_cast<T>(1U * x * y);  // 1U: no promotion to int.
  if constexpr (kind == min) return b < a ? b : a;
  if constexpr (kind == max) return a < b ? b : a;
  if constexpr (kind == band) return static_cast<T>(x & y);
  if constexpr (kind == bor) return static_cast<T>(x | y);
  if constexpr (kind == bxor) return static_cast<T>(x ^ y);
}

template <std::floating_point T>
constexpr bool is_negative(T value) noexcept {
  using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  return std::bit_cast<Bits>(value) < 0;
}

template <ReduceOp::Kind kind, std::floating_point T>
constexpr T apply(T a, T b) noexcept {
  using enum ReduceOp::Kind;
  if constexpr (kind == prod) return a * b;
  if constexpr (kind == min || kind == max) {
    if (a < b) return kind == min ? a : b;
    if (b < a) return kind == min ? b : a;
    if (a == b) return is_negative(a) == (kind == min) ? a : b;  // Zeros may differ in sign.
  }
  return a + b;  // One is NaN: the sum is a quiet NaN.
}

/// Adds complex numbers, the only operation on them.
template <ReduceOp::Kind kind, typename R>
constexpr Complex<R> apply(Complex<R> a, Complex<R> b) noexcept {
  return {a.real + b.real, a.imag + b.imag};
}

/// Multiplies an element by its scale before premul_sum adds it.
template <typename A>
constexpr A scaled(A value, double scale) noexcept {
  if constexpr (ComplexStorage<A>)
    return {scaled(value.real, scale), scaled(value.imag, scale)};
  else
    return value * static_cast<A>(scale);
}

/// Divides the sum of an avg by the number of inputs.
template <typename A>
constexpr A divide(A sum, std::size_t count) noexcept {
  if constexpr (std::signed_integral<A>) {
    return static_cast<A>(sum / static_cast<std::int64_t>(count));
  } else if constexpr (std::unsigned_integral<A>) {
    return static_cast<A>(sum / count);
  } else if constexpr (ComplexStorage<A>) {
    return {divide(sum.real, count), divide(sum.imag, count)};
  } else {
    return sum / static_cast<A>(count);
  }
}

/// Returns the largest value of T, which is infinity if T has one; with sign -1, the smallest.
template <typename T>
constexpr T extreme(int sign) noexcept {
  if constexpr (std::integral<T>) {
    return sign > 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
  } else if constexpr (std::same_as<T, Float8E4M3>) {
    return T{static_cast<float>(sign) * 448};
  } else if constexpr (std::same_as<T, double>) {
    return sign * std::numeric_limits<double>::infinity();
  } else {
    return T{static_cast<float>(sign) * std::numeric_limits<float>::infinity()};
  }
}

/// Returns the identity e, for which op(e, x) == x; 0 for avg and custom, which have none.
template <typename T, ReduceOp::Kind kind>
constexpr T identity() noexcept {
  using enum ReduceOp::Kind;
  if constexpr (BooleanStorage<T>) return {kind == prod || kind == min || kind == band};
  if constexpr (!BooleanStorage<T> && !ComplexStorage<T>) {
    if constexpr (kind == prod) return T{1};
    if constexpr (kind == min) return extreme<T>(1);
    if constexpr (kind == max) return extreme<T>(-1);
    if constexpr (kind == band && std::integral<T>) return static_cast<T>(-1);
  }
  return T{};
}

}  // namespace tutti::internal
