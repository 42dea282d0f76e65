#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <tutti/dtype.hpp>

namespace tutti::test {

/// A float of at most 16 bits by its definition: a sign, an exponent, a mantissa. Slow, and
/// computed in double, where every sum and difference that occurs is exact.
struct SmallFormat {
  int exp_bits;
  int man_bits;
  bool has_infinity;

  constexpr std::uint32_t sign_bit() const { return 1U << (exp_bits + man_bits); }
  constexpr std::uint32_t code_count() const { return 2 * sign_bit(); }
  constexpr std::uint32_t last_exp() const { return (1U << exp_bits) - 1; }
  constexpr std::uint32_t man_of(std::uint32_t code) const { return code & ((1U << man_bits) - 1); }
  constexpr std::uint32_t exp_of(std::uint32_t code) const {
    return (code & (sign_bit() - 1)) >> man_bits;
  }
  /// The code of the largest finite number.
  constexpr std::uint32_t largest() const {
    return has_infinity ? (last_exp() << man_bits) - 1 : sign_bit() - 2;
  }

  constexpr bool is_nan(std::uint32_t code) const {
    if (exp_of(code) != last_exp()) return false;
    return has_infinity ? man_of(code) != 0 : man_of(code) == (1U << man_bits) - 1;
  }
  constexpr bool is_infinity(std::uint32_t code) const {
    return has_infinity && exp_of(code) == last_exp() && man_of(code) == 0;
  }

  /// The magnitude of a finite code, or of the code after the largest as if the format continued.
  double magnitude(std::uint32_t code) const {
    const int bias = (1 << (exp_bits - 1)) - 1;
    const auto exp = static_cast<int>(exp_of(code));
    const double fraction = std::ldexp(static_cast<double>(man_of(code)), -man_bits);
    return exp == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exp - bias);
  }
  /// The code of the nearest magnitude, ties to the even code; the code behind the largest is the
  /// overflow. By comparing with both neighbours.
  std::uint32_t nearest(double value) const {
    std::uint32_t low = 0;  // The last code whose magnitude is not larger.
    std::uint32_t high = largest() + 1;
    while (high - low > 1) {
      const auto middle = (low + high) / 2;
      (magnitude(middle) <= value ? low : high) = middle;
    }
    const double down = value - magnitude(low);
    const double up = magnitude(high) - value;
    return down < up || (down == up && low % 2 == 0) ? low : high;
  }

  double decode(std::uint32_t code) const {
    const double value = is_nan(code)        ? std::numeric_limits<double>::quiet_NaN()
                         : is_infinity(code) ? std::numeric_limits<double>::infinity()
                                             : magnitude(code);
    return (code & sign_bit()) != 0 ? -value : value;
  }
  std::uint32_t encode(double value) const {
    const std::uint32_t quiet = has_infinity ? 1U << (man_bits - 1) : 0;
    return (std::signbit(value) ? sign_bit() : 0) |
           (std::isnan(value) ? largest() + 1 + quiet : nearest(std::fabs(value)));
  }
};

constexpr bool is_small(DType dtype) {
  return is_float(dtype) && dtype != DType::f32 && dtype != DType::f64;
}

/// The format of a dtype that is_small().
constexpr SmallFormat small_format(DType dtype) {
  if (dtype == DType::f16) return {5, 10, true};
  if (dtype == DType::bf16) return {8, 7, true};
  if (dtype == DType::f8e4m3) return {4, 3, false};
  return {5, 2, true};
}

}  // namespace tutti::test
