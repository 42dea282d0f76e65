#include <tutti/dtype.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/dtypes.hpp"

namespace tutti {
namespace {

static_assert(dtype_of<std::int8_t> == DType::i8);
static_assert(dtype_of<std::uint8_t> == DType::u8);
static_assert(dtype_of<std::byte> == DType::u8);
static_assert(dtype_of<bool> == DType::boolean);
static_assert(dtype_of<std::int32_t> == DType::i32);
static_assert(dtype_of<std::uint32_t> == DType::u32);
// There are two types of 8 bytes each: a list of type names would miss one.
static_assert(dtype_of<long long> == DType::i64 && dtype_of<unsigned long long> == DType::u64);
static_assert(dtype_of<std::int64_t> == DType::i64 && dtype_of<std::uint64_t> == DType::u64);
static_assert(dtype_of<const float> == DType::f32 && dtype_of<volatile double> == DType::f64);
static_assert(dtype_of<short> == DType::i16 && dtype_of<unsigned short> == DType::u16);
static_assert(dtype_of<std::complex<float>> == DType::complex64);
static_assert(dtype_of<const std::complex<double>> == DType::complex128);
static_assert(!Element<char> && !Element<std::complex<long double>>);
static_assert(!Element<void*> && !Element<long double> && !Element<std::string>);

TEST(DType, SizeIsThatOfTheCppType) {
  for (const DType dtype : test::all_dtypes)
    visit_dtype(dtype, [&]<typename T>() {
      EXPECT_EQ(size_of(dtype), sizeof(T)) << name_of(dtype);
      EXPECT_EQ(dtype_of<T>, dtype) << name_of(dtype);
    });
}

TEST(DType, EveryNameIsParsedBack) {
  std::set<std::string_view> names;
  for (const DType dtype : test::all_dtypes) {
    names.insert(name_of(dtype));
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype) << name_of(dtype);
  }
  EXPECT_EQ(names.size(), std::size_t{dtype_count}) << "two dtypes share a name";
}

TEST(DType, BoolIsAnotherNameOfBoolean) {
  EXPECT_EQ(parse_dtype("bool"), DType::boolean);
  EXPECT_EQ(name_of(DType::boolean), "boolean");
}

TEST(DType, OtherNamesAreUnknown) {
  for (const auto* name :
       {"", "F32", "f32 ", " f32", "f", "float", "f128", "complex", "unknown dtype"})
    EXPECT_EQ(parse_dtype(name), std::nullopt) << "'" << name << "'";
}

TEST(DType, AValueBehindTheLastHasNoSizeAndNoName) {
  for (const int value : {dtype_count, 77, 255}) {
    EXPECT_EQ(size_of(static_cast<DType>(value)), 0U);
    EXPECT_EQ(name_of(static_cast<DType>(value)), "unknown dtype");
  }
}

TEST(DType, EveryOneIsAFloatOrAnIntegerOrComplexOrBoolean) {
  for (const DType dtype : test::all_dtypes)
    visit_dtype(dtype, [&]<typename T>() {
      constexpr bool boolean = std::is_same_v<T, bool>;
      EXPECT_EQ(is_float(dtype), test::is_float_type<T>) << name_of(dtype);
      EXPECT_EQ(is_integer(dtype), std::is_integral_v<T> && !boolean) << name_of(dtype);
      EXPECT_EQ(is_complex(dtype), test::is_complex_type<T>) << name_of(dtype);
      EXPECT_EQ(is_float(dtype) + is_integer(dtype) + is_complex(dtype) + boolean, 1)
          << name_of(dtype);
    });
}

}  // namespace
}  // namespace tutti
