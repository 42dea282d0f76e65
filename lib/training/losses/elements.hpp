#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/half.hpp>
#include <tutti/tensor.hpp>

#include "kernels/gradients.hpp"
#include "values/fail.hpp"

// Checks of a batch's arrays, and conversions of logits to double and back.

namespace tutti::internal::losses {

/// σ(x) and 1 - σ(x), both computed without a subtraction, which would lose digits.
struct Logistic {
  double value, rest;
  explicit Logistic(double x) {
    const double e = std::exp(-std::abs(x));
    const double large = 1 / (1 + e);
    const double small = e * large;
    value = x > 0 ? large : small;
    rest = x > 0 ? small : large;
  }
  double slope() const noexcept { return value * rest; }
};

/// Calls use(T{}) with the C++ type T of `dtype`. @throws Error invalid_argument unless `dtype` is
/// f16, bf16, f32 or f64.
template <typename Use>
void with_type(DType dtype, const Use& use) {
  if (!has_gradient(dtype))
    failf(Errc::invalid_argument, "logits are {}; they must be f16, bf16, f32 or f64",
          name_of(dtype));
  visit_gradient(dtype, use);
}

template <typename T>
double to_double(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value;
  else
    return static_cast<float>(value);
}

template <typename T>
T from_double(double value) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(value);
  else
    return T(static_cast<float>(value));
}

/// Checks an array, which error texts name `what`. @throws Error invalid_argument if it has
/// elements and is null, or has an element that is not finite; unsupported if it is not on the
/// host.
void check_elements(std::string_view what, const ConstTensorView& array);
std::vector<double> to_doubles(const ConstTensorView& array);

/// Checks weights of rows or elements, and returns them. @throws Error invalid_argument if the
/// dtype is no floating point, or if a weight is not finite or below 0.
std::vector<double> check_weights(const ConstTensorView& weights);

/// Checks logits [N, classes], or [N] for one class, and their targets i64 [N] or [N, 1]. Every
/// target must be a class (0 or 1 if `classes` is 1) or `ignore_index`, unless `any_target` is set.
/// @return the targets. @throws Error if a check fails.
std::span<const std::int64_t> check_rows(const ConstTensorView& logits,
                                         const ConstTensorView& targets, std::int64_t classes,
                                         std::int64_t ignore_index, bool any_target = false);

/// Returns the given rows of logits [N, C], transposed: [C, rows].
std::vector<double> columns_of(const ConstTensorView& logits, std::size_t classes,
                               std::span<const std::uint32_t> rows);

}  // namespace tutti::internal::losses
