#include "kernels/reduce.hpp"

#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel_target.hpp"
#include "kernels/reduce_arithmetic.hpp"
#include "kernels/reduce_types.hpp"

#ifdef TUTTI_HIGHWAY
#include "kernels/reduce_simd.hpp"
#endif

namespace tutti::internal {
namespace {

using Kind = ReduceOp::Kind;

#ifdef TUTTI_HIGHWAY
constexpr std::size_t index(auto enumerator) noexcept {
  return static_cast<std::size_t>(enumerator);
}
#endif

template <typename To, typename From>
void convert(void* out, const void* in, std::size_t done, std::size_t n) noexcept {
  auto* const to = static_cast<std::byte*>(out);
  const auto* const from = static_cast<const std::byte*>(in);
  for (std::size_t i = done; i < n; ++i)
    store<To>(to + i * sizeof(To), load<From>(from + i * sizeof(From)));
}

template <typename T>
void fill(void* out, T value, std::size_t n) noexcept {
  auto* to = static_cast<std::byte*>(out);
  for (std::size_t i = 0; i < n; ++i) std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

ReduceFn reduce_fn(DType dtype, Kind kind) noexcept {
#ifdef TUTTI_HIGHWAY
  if (const auto fn = simd::kernels().reduce[index(dtype)][index(kind)]) return fn;
#endif
  return scalar::reduce_fn(dtype, kind);
}

bool can_reduce(DType dtype, Kind kind) noexcept {
  return visit_type(dtype, [&]<typename T>(T) {
    return visit_kind(kind, [](auto k) { return foldable<T, k()>; });
  });
}

void fold(DType dtype, Kind kind, void* out, std::span<const void* const> inputs,
          std::span<const double> scales, std::size_t n) noexcept {
  if (n == 0) return;  // The pointers may be null.
  assert(can_reduce(dtype, kind) && !inputs.empty());
  assert(scales.size() == (kind == Kind::premul_sum ? inputs.size() : 0));
  if (inputs.size() == 1 && kind != Kind::premul_sum && dtype != DType::boolean) {
    if (out != inputs[0]) std::memcpy(out, inputs[0], n * size_of(dtype));
    return;
  }
#ifdef TUTTI_HIGHWAY
  const auto& kernels = simd::kernels();
  if (inputs.size() == 2) {
    if (const auto fn = kernels.reduce[index(dtype)][index(kind)])
      return fn(out, inputs[0], inputs[1], n);
  }
  if (const auto fn = kernels.fold[index(dtype)][index(kind)]) return fn(out, inputs, scales, n);
#endif
  scalar::fold(dtype, kind, out, inputs, scales, n);
}

void widen_halves(void* out, const void* in, std::size_t n) noexcept {
  std::size_t done = 0;
#ifdef TUTTI_HIGHWAY
  if (const auto fn = simd::kernels().widen_halves) done = fn(out, in, n);
#endif
  convert<float, Float16>(out, in, done, n);
}

void narrow_halves(void* out, const void* in, std::size_t n) noexcept {
  std::size_t done = 0;
#ifdef TUTTI_HIGHWAY
  if (const auto fn = simd::kernels().narrow_halves) done = fn(out, in, n);
#endif
  convert<Float16, float>(out, in, done, n);
}

void fill_identity(DType dtype, Kind kind, void* out, std::size_t n) noexcept {
  visit_type(dtype, [&]<typename T>(T) {
    visit_kind(kind, [&](auto k) { fill(out, identity<T, k()>(), n); });
  });
}

#ifndef TUTTI_HIGHWAY
const char* kernel_target() noexcept {
  return "scalar";
}
std::vector<std::string_view> kernel_targets() {
  return {"scalar"};
}
void choose_kernel_target(std::string_view) {}
#endif

}  // namespace tutti::internal
