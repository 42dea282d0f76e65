#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/half.hpp>
#include <tutti/tensor.hpp>

#include "values/fail.hpp"

// The dtypes of logits, seen as double.

namespace tutti::internal::losses {

/// σ(x) and σ'(x).
struct Logistic {
  double value, slope;
  explicit Logistic(double x) {
    const double e = std::exp(-std::abs(x));
    const double large = 1 / (1 + e);
    value = x > 0 ? large : e * large;
    slope = e * large * large;
  }
};

/// Calls use(T{}) with the type of a dtype of logits.
template <typename Use>
void with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::f32:
      return use(float{});
    case DType::f64:
      return use(double{});
    case DType::f16:
      return use(Float16{});
    case DType::bf16:
      return use(BFloat16{});
    default:
      failf(Errc::invalid_argument, "logits are {}; they may be f32, f64, f16 and bf16",
            name_of(dtype));
  }
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

/// @throws Error: null where there are elements, not on the host, not finite.
void check_elements(std::string_view what, const ConstTensorView& array);
std::vector<double> to_doubles(const ConstTensorView& array);

/// Some rows of logits [N, C] by class: [C, rows].
std::vector<double> columns_of(const ConstTensorView& logits, std::size_t classes,
                               std::span<const std::uint32_t> rows);

}  // namespace tutti::internal::losses
