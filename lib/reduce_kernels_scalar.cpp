#include "internal/reduce_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "internal/reduce_kernels_types.hpp"

namespace tutti::internal::scalar {
namespace {

using Kind = ReduceOp::Kind;

/// The type that elements stored as T are computed in.
template <typename T>
struct Accumulation {
  using type = float;
};
template <typename T>
requires std::is_arithmetic_v<T>
struct Accumulation<T> {
  using type = T;
};
template <>
struct Accumulation<Boolean> {
  using type = bool;
};
template <typename T>
using Acc = typename Accumulation<T>::type;

// Copied, because an array may lie at any address; a compiler makes a plain load of it.
template <typename T>
Acc<T> load(const std::byte* from) noexcept {
  T stored;
  std::memcpy(&stored, from, sizeof stored);
  if constexpr (BooleanStorage<T>) {
    return stored.byte != 0;
  } else {
    return static_cast<Acc<T>>(stored);
  }
}

template <typename T>
void store(std::byte* to, Acc<T> value) noexcept {
  const T stored{value};
  std::memcpy(to, &stored, sizeof stored);
}

template <Kind kind>
bool apply(bool a, bool b) noexcept {
  using enum ReduceOp::Kind;
  if constexpr (kind == band || kind == min || kind == product) return a && b;
  if constexpr (kind == bor || kind == max || kind == sum) return a || b;
  if constexpr (kind == bxor) return a != b;
}

template <Kind kind, std::integral T>
T apply(T a, T b) noexcept {
  using enum ReduceOp::Kind;
  using Wrapping = std::make_unsigned_t<T>;  // Signed overflow is undefined.
  const auto x = static_cast<Wrapping>(a);
  const auto y = static_cast<Wrapping>(b);
  if constexpr (kind == sum || kind == avg) return static_cast<T>(x + y);
  if constexpr (kind == product) return static_cast<T>(x * y);
  if constexpr (kind == min) return b < a ? b : a;
  if constexpr (kind == max) return a < b ? b : a;
  if constexpr (kind == band) return static_cast<T>(x & y);
  if constexpr (kind == bor) return static_cast<T>(x | y);
  if constexpr (kind == bxor) return static_cast<T>(x ^ y);
}

template <Kind kind, std::floating_point T>
T apply(T a, T b) noexcept {
  using enum ReduceOp::Kind;
  if constexpr (kind == product) return a * b;
  if constexpr (kind == min || kind == max) {
    if (a < b) return kind == min ? a : b;
    if (b < a) return kind == min ? b : a;
    if (a == b) return std::signbit(a) == (kind == min) ? a : b;  // Only zeros differ here.
  }
  return a + b;  // Also what makes a quiet NaN of two numbers that do not compare.
}

template <typename T, Kind kind>
void reduce(void* out, const void* a, const void* b, std::size_t n) {
  auto* to = static_cast<std::byte*>(out);
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  for (std::size_t i = 0; i < n * sizeof(T); i += sizeof(T))
    store<T>(to + i, apply<kind>(load<T>(x + i), load<T>(y + i)));
}

template <typename A>
A divide(A sum, std::size_t count) noexcept {
  if constexpr (std::signed_integral<A>) {
    return static_cast<A>(sum / static_cast<std::int64_t>(count));
  } else if constexpr (std::unsigned_integral<A>) {
    return static_cast<A>(sum / count);
  } else {
    return sum / static_cast<A>(count);
  }
}

// What is held between the inputs: a few KiB, so that it stays in the first-level cache.
constexpr std::size_t block = 512;

/// An element of input k, ready to be added.
template <typename T, Kind kind>
Acc<T> term(std::span<const void* const> inputs, std::span<const double> scales, std::size_t k,
            std::size_t offset) noexcept {
  const Acc<T> value = load<T>(static_cast<const std::byte*>(inputs[k]) + offset);
  if constexpr (kind == Kind::premul_sum) return value * static_cast<Acc<T>>(scales[k]);
  return value;
}

/// Folds n <= block elements that begin at `offset` bytes. Reads all inputs before it writes.
template <typename T, Kind kind>
void fold_block(std::byte* out, std::span<const void* const> inputs, std::span<const double> scales,
                std::size_t offset, std::size_t n) noexcept {
  Acc<T> acc[block];
  for (std::size_t i = 0; i < n; ++i)
    acc[i] = term<T, kind>(inputs, scales, 0, offset + i * sizeof(T));
  for (std::size_t k = 1; k < inputs.size(); ++k)
    for (std::size_t i = 0; i < n; ++i)
      acc[i] = apply<kind>(acc[i], term<T, kind>(inputs, scales, k, offset + i * sizeof(T)));
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (kind == Kind::avg) acc[i] = divide(acc[i], inputs.size());
    store<T>(out + i * sizeof(T), acc[i]);
  }
}

template <typename T, Kind kind>
void fold(void* out, std::span<const void* const> inputs, std::span<const double> scales,
          std::size_t n) noexcept {
  auto* to = static_cast<std::byte*>(out);
  for (std::size_t i = 0; i < n; i += block) {
    const std::size_t offset = i * sizeof(T);
    fold_block<T, kind>(to + offset, inputs, scales, offset, std::min(block, n - i));
  }
}

}  // namespace

ReduceFn reduce_fn(DType dtype, Kind kind) noexcept {
  return visit_type(dtype, [&]<typename T>(T) {
    return visit_kind(kind, [](auto k) -> ReduceFn {
      if constexpr (reducible<T, k()>) return &reduce<T, k()>;
      return nullptr;
    });
  });
}

void fold(DType dtype, Kind kind, void* out, std::span<const void* const> inputs,
          std::span<const double> scales, std::size_t n) noexcept {
  visit_type(dtype, [&]<typename T>(T) {
    visit_kind(kind, [&](auto k) {
      if constexpr (foldable<T, k()>) fold<T, k()>(out, inputs, scales, n);
    });
  });
}

void divide(DType dtype, void* data, std::size_t n, std::size_t by) noexcept {
  visit_type(dtype, [&]<typename T>(T) {
    if constexpr (foldable<T, Kind::avg>) {
      auto* at = static_cast<std::byte*>(data);
      for (std::size_t i = 0; i < n * sizeof(T); i += sizeof(T))
        store<T>(at + i, divide(load<T>(at + i), by));
    }
  });
}

}  // namespace tutti::internal::scalar
