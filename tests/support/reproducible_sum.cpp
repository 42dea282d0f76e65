#include "support/reproducible_sum.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "support/small_format.hpp"

namespace tutti::test {
namespace {

__extension__ using Int128 = __int128;

/// s * 2^exponent, rounded to a number of the format with any exponent; f64 holds it.
double nearest(Int128 s, int exponent, const FloatFormat& format) {
  const bool negative = s < 0;
  __extension__ using Magnitude = unsigned __int128;
  auto m = negative ? -static_cast<Magnitude>(s) : static_cast<Magnitude>(s);
  bool below = false;  // The bits that were dropped: the last one, and whether others were set.
  bool half = false;
  const auto fits = [&] {
    return m >> format.digits == 0 && exponent >= format.least_exponent - (format.digits - 1);
  };
  while (!fits()) {
    below = below || half;
    half = (m & 1) != 0;
    m >>= 1;
    ++exponent;
  }
  if (half && (below || (m & 1) != 0)) ++m;
  const double value = std::ldexp(static_cast<double>(static_cast<std::uint64_t>(m)), exponent);
  return negative ? -value : value;
}

}  // namespace

FloatFormat format_of(DType dtype) {
  if (dtype == DType::f64) return {53, -1022};
  if (dtype == DType::f32) return {24, -126};
  const auto f = small_format(dtype);
  return {f.man_bits + 1, 2 - (1 << (f.exp_bits - 1))};
}

double reproducible_sum(DType dtype, std::span<const double> addends, Mutant mutant) {
  const FloatFormat of = format_of(dtype == DType::f64 ? DType::f64 : DType::f32);
  const int width = dtype == DType::f64 ? 32 : 16;
  double special = 0;
  int largest = 0;  // A biased exponent.
  bool all_minus_zero = true;
  for (const double x : addends) {
    if (!std::isfinite(x)) special += x;
    all_minus_zero = all_minus_zero && x == 0 && std::signbit(x);
    if (std::isfinite(x) && x != 0)
      largest = std::max(largest, std::ilogb(x) - of.least_exponent + 1);
  }
  if (std::isnan(special) || special != 0) return special;
  if (mutant == Mutant::keeps_zero_sign && all_minus_zero) return -0.0;
  int unit = width * (largest / width - 2) + of.least_exponent;
  if (mutant == Mutant::doubles_unit) ++unit;
  if (mutant == Mutant::bins_of_one) unit = largest - 2 * width + of.least_exponent;
  Int128 sum = 0;
  for (const double x : addends) {
    if (x == 0) continue;
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(x), &exponent);
    const auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
    const int shift = exponent - 53 - unit;
    Int128 part = shift >= 0 ? Int128{mantissa} << shift : shift > -64 ? mantissa >> -shift : 0;
    if (shift < 0 && shift > -64) {
      const auto rest = mantissa & ((std::uint64_t{1} << -shift) - 1);
      const auto half = std::uint64_t{1} << (-shift - 1);
      const bool odd = part % 2 != 0 || mutant == Mutant::rounds_half_up;
      if (mutant != Mutant::truncates_addends && (rest > half || (rest == half && odd))) ++part;
    }
    sum += std::signbit(x) ? -part : part;
  }
  return nearest(sum, unit, format_of(dtype));
}

}  // namespace tutti::test
