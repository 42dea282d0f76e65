#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <tutti/dtype.hpp>
#include <tutti/half.hpp>
#include <tutti/reduce_op.hpp>

// Types of kernels, and visitors from DType and Kind to types and constants.

namespace tutti::internal {

/// out[i] = op(a[i], b[i]), rounded to the dtype; out may be a or b. The signature is Gloo's.
using ReduceFn = void (*)(void* out, const void* a, const void* b, std::size_t n);

/// The type of fold() for one dtype and operation.
using FoldFn = void (*)(void* out, std::span<const void* const> inputs,
                        std::span<const double> scales, std::size_t n) noexcept;

/// A stored boolean. Received bytes may have any value, but a C++ bool must be 0 or 1.
struct Boolean {
  std::uint8_t byte = 0;
};

/// A stored complex number. std::complex does not compile in device code.
template <typename R>
struct Complex {
  R real{};
  R imag{};
};
template <typename T>
struct Storage {
  using type = T;
};
template <>
struct Storage<bool> {
  using type = Boolean;
};
template <typename R>
struct Storage<std::complex<R>> {
  using type = Complex<R>;
};

/// Calls f(T{}), where T is the storage type of `dtype`.
template <typename F>
constexpr decltype(auto) visit_type(DType dtype, F&& f) {
  return visit_dtype(
      dtype, [&]<typename T>() -> decltype(auto) { return f(typename Storage<T>::type{}); });
}

/// Calls f(constant) with constant() == kind.
template <typename F>
constexpr decltype(auto) visit_kind(ReduceOp::Kind kind, F&& f) {
  using enum ReduceOp::Kind;
  switch (kind) {
    case sum:
      return f(std::integral_constant<ReduceOp::Kind, sum>{});
    case avg:
      return f(std::integral_constant<ReduceOp::Kind, avg>{});
    case prod:
      return f(std::integral_constant<ReduceOp::Kind, prod>{});
    case min:
      return f(std::integral_constant<ReduceOp::Kind, min>{});
    case max:
      return f(std::integral_constant<ReduceOp::Kind, max>{});
    case band:
      return f(std::integral_constant<ReduceOp::Kind, band>{});
    case bor:
      return f(std::integral_constant<ReduceOp::Kind, bor>{});
    case bxor:
      return f(std::integral_constant<ReduceOp::Kind, bxor>{});
    case premul_sum:
      return f(std::integral_constant<ReduceOp::Kind, premul_sum>{});
    case custom:
      return f(std::integral_constant<ReduceOp::Kind, custom>{});
  }
  __builtin_unreachable();
}

template <typename T>
concept BooleanStorage = std::same_as<T, Boolean>;
template <typename T>
concept ComplexStorage = std::same_as<T, Complex<float>> || std::same_as<T, Complex<double>>;

/// True for pairs that fold() supports; see can_reduce().
template <typename T, ReduceOp::Kind kind>
inline constexpr bool foldable = [] {
  using enum ReduceOp::Kind;
  constexpr bool integer = std::integral<T>;
  constexpr bool boolean = BooleanStorage<T>;
  constexpr bool complex = ComplexStorage<T>;
  switch (kind) {
    case custom:
      return false;
    case sum:
      return true;
    case avg:
      return !boolean;
    case premul_sum:
      return !boolean && !integer;
    case band:
    case bor:
    case bxor:
      return boolean || integer;
    default:
      return !complex;
  }
}();

/// True for pairs that reduce_fn() supports: kinds that are one operation on two elements.
template <typename T, ReduceOp::Kind kind>
inline constexpr bool reducible =
    foldable<T, kind>&& kind != ReduceOp::Kind::avg&& kind != ReduceOp::Kind::premul_sum;

}  // namespace tutti::internal
