#pragma once

#include <bit>
#include <cstdint>

namespace [[gnu::visibility("default")]] tutti {

// Storage types of the small floats, with correctly rounded conversions (to nearest, ties to even).
// A finite value too large for the type becomes infinity, or NaN in Float8E4M3, which has no
// infinity. An overflow never becomes the largest finite number.

namespace detail {

/// Decodes a float of 1 + `exp_bits` + `man_bits` bits.
template <int exp_bits, int man_bits, bool has_infinity>
[[gnu::visibility("hidden")]] constexpr float decode_small(std::uint32_t bits) noexcept {
  if constexpr (exp_bits == 8) return std::bit_cast<float>(bits << (23 - man_bits));
  constexpr std::uint32_t exp_mask = (1U << exp_bits) - 1;
  constexpr std::uint32_t man_mask = (1U << man_bits) - 1;
  constexpr int bias = (1 << (exp_bits - 1)) - 1;
  const std::uint32_t sign = (bits >> (exp_bits + man_bits)) << 31;
  const std::uint32_t exp = (bits >> man_bits) & exp_mask;
  const std::uint32_t man = bits & man_mask;
  if (exp == exp_mask && (has_infinity || man == man_mask))
    return std::bit_cast<float>(sign | 0x7f800000U | (man << (23 - man_bits)));
  if (exp == 0) {  // Subnormal: man * 2^(1 - bias - man_bits), exact in float.
    const float unit =
        std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - bias - man_bits) << 23);
    const float magnitude = static_cast<float>(man) * unit;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exp + static_cast<std::uint32_t>(127 - bias)) << 23) |
                              (man << (23 - man_bits)));
}

/// The inverse of decode_small(), rounded.
template <int exp_bits, int man_bits, bool has_infinity>
[[gnu::visibility("hidden")]] constexpr std::uint32_t encode_small(float value) noexcept {
  constexpr std::uint32_t exp_mask = (1U << exp_bits) - 1;
  constexpr int bias = (1 << (exp_bits - 1)) - 1;
  constexpr std::uint32_t infinity = exp_mask << man_bits;
  constexpr std::uint32_t nan =
      has_infinity ? infinity | (1U << (man_bits - 1)) : infinity | ((1U << man_bits) - 1);
  constexpr std::uint32_t overflow = has_infinity ? infinity : nan;
  const auto raw = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (raw >> 31) << (exp_bits + man_bits);
  const std::uint32_t magnitude = raw & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | nan;
  if (magnitude == 0x7f800000U) return sign | overflow;
  // The significand as an integer, shifted right to the unit of the target.
  const int exp = static_cast<int>(magnitude >> 23);
  const std::uint32_t man = exp == 0 ? magnitude : (magnitude & 0x7fffffU) | 0x800000U;
  const int target = (exp == 0 ? 1 : exp) - 127 + bias;  // Biased exponent in the target.
  const int shift = 23 - man_bits + (target < 1 ? 1 - target : 0);
  if (shift > 25) return sign;  // Below half of the smallest subnormal.
  const std::uint32_t kept = man >> shift;
  const std::uint32_t rest = man & ((1U << shift) - 1);
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t up = rest > half || (rest == half && (kept & 1U) != 0) ? 1 : 0;
  // A carry out of the mantissa correctly increments the exponent.
  const std::uint32_t rounded =
      target < 1 ? kept + up : kept + up + (static_cast<std::uint32_t>(target - 1) << man_bits);
  return sign | (rounded > (has_infinity ? infinity - 1 : nan - 1) ? overflow : rounded);
}

/// Storage of a float of 1 + `exp_bits` + `man_bits` bits. A value type.
template <typename Bits, int exp_bits, int man_bits, bool has_infinity>
struct SmallFloat {
  Bits bits = 0;  ///< From the highest bit on: sign, exponent, mantissa.
  SmallFloat() = default;
  constexpr explicit SmallFloat(float value) noexcept
      : bits(static_cast<Bits>(encode_small<exp_bits, man_bits, has_infinity>(value))) {}
  constexpr explicit operator float() const noexcept {
    return decode_small<exp_bits, man_bits, has_infinity>(bits);
  }
};

}  // namespace detail

/// DType::f16, IEEE 754 binary16: 5 bits of exponent, 10 of mantissa.
struct Float16 : detail::SmallFloat<std::uint16_t, 5, 10, true> {
  using SmallFloat::SmallFloat;
};
/// DType::bf16, the upper half of a float: 8 bits of exponent, 7 of mantissa.
struct BFloat16 : detail::SmallFloat<std::uint16_t, 8, 7, true> {
  using SmallFloat::SmallFloat;
};
/// DType::f8e4m3: 4 bits of exponent, 3 of mantissa, no infinity; at most 448.
struct Float8E4M3 : detail::SmallFloat<std::uint8_t, 4, 3, false> {
  using SmallFloat::SmallFloat;
};
/// DType::f8e5m2: 5 bits of exponent, 2 of mantissa; at most 57344, or infinite.
struct Float8E5M2 : detail::SmallFloat<std::uint8_t, 5, 2, true> {
  using SmallFloat::SmallFloat;
};

}  // namespace tutti
