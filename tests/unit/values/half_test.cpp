#include <tutti/half.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "support/small_format.hpp"

namespace tutti {
namespace {

template <typename T>
constexpr test::SmallFormat format_of = test::small_format(dtype_of<T>);

template <typename T>
T from_bits(std::uint32_t code) {
  T value;
  value.bits = static_cast<decltype(value.bits)>(code);
  return value;
}

template <typename T>
void check_encode(float value) {
  constexpr auto format = format_of<T>;
  const std::uint32_t got = T(value).bits;
  const std::uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  ASSERT_EQ(got & format.sign_bit(), sign) << value;
  const std::uint32_t want = format.nearest(std::fabs(static_cast<double>(value)));
  if (want <= format.largest()) {
    ASSERT_EQ(got, sign | want) << value;
  } else if (format.has_infinity) {
    ASSERT_TRUE(format.is_infinity(got)) << value << " became " << got;
  } else {
    ASSERT_TRUE(format.is_nan(got)) << value << " became " << got;
  }
}

template <typename T>
class SmallFloat : public testing::Test {
 protected:
  static constexpr auto format = format_of<T>;
  static constexpr std::uint32_t codes = format.code_count();
};

struct Names {
  template <typename T>
  static std::string GetName(int) {
    if (std::is_same_v<T, Float16>) return "f16";
    if (std::is_same_v<T, BFloat16>) return "bf16";
    return std::is_same_v<T, Float8E4M3> ? "f8e4m3" : "f8e5m2";
  }
};
using Types = testing::Types<Float16, BFloat16, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(SmallFloat, Types, Names);

TYPED_TEST(SmallFloat, EveryCodeDecodesToItsValue) {
  for (std::uint32_t code = 0; code < this->codes; ++code) {
    const auto got = static_cast<float>(from_bits<TypeParam>(code));
    const bool negative = (code & this->format.sign_bit()) != 0;
    ASSERT_EQ(std::signbit(got), negative) << code;
    if (this->format.is_nan(code)) {
      ASSERT_TRUE(std::isnan(got)) << code;
    } else if (this->format.is_infinity(code)) {
      ASSERT_TRUE(std::isinf(got)) << code;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(got)), this->format.magnitude(code)) << code;
    }
  }
}

TYPED_TEST(SmallFloat, EveryCodeSurvivesTheWayThroughFloat) {
  for (std::uint32_t code = 0; code < this->codes; ++code) {
    const auto again = TypeParam(static_cast<float>(from_bits<TypeParam>(code)));
    if (this->format.is_nan(code))
      ASSERT_TRUE(this->format.is_nan(again.bits)) << code;
    else
      ASSERT_EQ(again.bits, code);
  }
}

// Together with EncodingNeverStepsBack this covers every float: floats between two checked
// neighbours of one code can only have that code.
TYPED_TEST(SmallFloat, BothSidesOfEveryRoundingBoundaryAreRight) {
  for (std::uint32_t code = 0; code <= this->format.largest(); ++code) {
    const double low = this->format.magnitude(code);
    const double high = this->format.magnitude(code + 1);
    const double middle = (low + high) / 2;
    ASSERT_EQ(static_cast<double>(static_cast<float>(middle)), middle) << "the test is too coarse";
    for (const double value : {low, middle, high}) {
      const auto here = static_cast<float>(value);  // bf16: the last value is infinite.
      if (std::isinf(here)) continue;
      for (const float near : {std::nextafter(here, 0.0F), here,
                               std::nextafter(here, std::numeric_limits<float>::infinity())}) {
        if (std::isinf(near)) continue;
        check_encode<TypeParam>(near);
        check_encode<TypeParam>(-near);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(SmallFloat, RandomFloatsRoundToNearest) {
  std::mt19937 random(4711);
  for (int i = 0; i < 100'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    check_encode<TypeParam>(value);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(SmallFloat, NanStaysNanAndKeepsItsSign) {
  for (const std::uint32_t bits :
       {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0x7fbfffffU, 0xff800001U, 0xffc00000U}) {
    const std::uint32_t got = TypeParam(std::bit_cast<float>(bits)).bits;
    EXPECT_TRUE(this->format.is_nan(got)) << std::hex << bits << " became " << got;
    EXPECT_EQ((got & this->format.sign_bit()) != 0, bits >> 31 == 1) << std::hex << bits;
  }
}

TYPED_TEST(SmallFloat, InfinityIsNeverAFiniteNumber) {
  for (const float sign : {1.0F, -1.0F}) {
    const float infinity = sign * std::numeric_limits<float>::infinity();
    const std::uint32_t got = TypeParam(infinity).bits;
    if (this->format.has_infinity)
      EXPECT_TRUE(this->format.is_infinity(got));
    else
      EXPECT_TRUE(this->format.is_nan(got));
    EXPECT_EQ((got & this->format.sign_bit()) != 0, sign < 0);
  }
}

TYPED_TEST(SmallFloat, DefaultMadeIsZero) {
  EXPECT_EQ(TypeParam().bits, 0);
  EXPECT_EQ(sizeof(TypeParam) * 8,
            static_cast<std::size_t>(1 + this->format.exp_bits + this->format.man_bits));
}

// Known numbers of the standards, which detect an error in the reference.
TEST(SmallFloats, KnownValues) {
  static_assert(Float16(1.0F).bits == 0x3c00 && Float16(-2.0F).bits == 0xc000);
  static_assert(Float16(65504.0F).bits == 0x7bff && Float16(65519.0F).bits == 0x7bff);
  static_assert(Float16(65520.0F).bits == 0x7c00);
  static_assert(static_cast<float>(BFloat16(3.14159274F)) == 3.140625F);
  static_assert(Float8E4M3(448.0F).bits == 0x7e && Float8E4M3(464.0F).bits == 0x7e);
  static_assert(Float8E4M3(465.0F).bits == 0x7f, "no infinity: too large is NaN");
  static_assert(Float8E5M2(57344.0F).bits == 0x7b && Float8E5M2(61440.0F).bits == 0x7c);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x0001)), std::ldexp(1.0F, -24));
  EXPECT_EQ(static_cast<float>(from_bits<Float8E4M3>(0x01)), std::ldexp(1.0F, -9));
  EXPECT_EQ(static_cast<float>(from_bits<Float8E5M2>(0x01)), std::ldexp(1.0F, -16));
}

template <typename T>
class SlowSmallFloat : public SmallFloat<T> {};
TYPED_TEST_SUITE(SlowSmallFloat, Types, Names);

/// Every float, in the suite "slow".
TYPED_TEST(SlowSmallFloat, EncodingNeverStepsBack) {
  std::uint32_t last = 0;
  for (std::uint32_t bits = 0; bits <= 0x7f800000U; ++bits) {
    const std::uint32_t code = TypeParam(std::bit_cast<float>(bits)).bits;
    ASSERT_TRUE(code == last || code == last + 1)
        << std::hex << bits << ": " << last << ", " << code;
    last = code;
    const std::uint32_t negative = TypeParam(std::bit_cast<float>(bits | 0x80000000U)).bits;
    ASSERT_EQ(negative, code | this->format.sign_bit()) << std::hex << bits;
  }
}

}  // namespace
}  // namespace tutti
