#include "kernels/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/reduce_arithmetic.hpp"
#include "kernels/reduce_types.hpp"

namespace tutti::internal::scalar {
namespace {

using Kind = ReduceOp::Kind;

template <typename T, Kind kind>
void reduce(void* out, const void* a, const void* b, std::size_t n) {
  auto* to = static_cast<std::byte*>(out);
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  for (std::size_t i = 0; i < n * sizeof(T); i += sizeof(T))
    store<T>(to + i, apply<kind>(load<T>(x + i), load<T>(y + i)));
}

// Number of intermediate results: a few KiB, which fit in the first-level cache.
constexpr std::size_t block = 512;

/// Returns an element of input k in the accumulation type, scaled for premul_sum.
template <typename T, Kind kind>
Acc<T> term(std::span<const void* const> inputs, std::span<const double> scales, std::size_t k,
            std::size_t offset) noexcept {
  const Acc<T> value = load<T>(static_cast<const std::byte*>(inputs[k]) + offset);
  if constexpr (kind == Kind::premul_sum) return scaled(value, scales[k]);
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
    if constexpr (kind == Kind::avg) acc[i] = internal::divide(acc[i], inputs.size());
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

}  // namespace tutti::internal::scalar

namespace tutti::internal {

void divide(DType dtype, void* data, std::size_t n, std::size_t by) noexcept {
  visit_type(dtype, [&]<typename T>(T) {
    if constexpr (foldable<T, ReduceOp::Kind::avg>) {
      auto* at = static_cast<std::byte*>(data);
      for (std::size_t i = 0; i < n * sizeof(T); i += sizeof(T))
        store<T>(at + i, divide(load<T>(at + i), by));
    }
  });
}

}  // namespace tutti::internal
