#include "bench/pattern.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "support/dtypes.hpp"

namespace tutti::tool {
namespace {

using Kind = ReduceOp::Kind;
constexpr std::int64_t count = 999;
constexpr std::uint64_t seed = 7;

std::vector<std::byte> filled(const Pattern& pattern, DType dtype, int rank,
                              std::int64_t first = 0) {
  std::vector<std::byte> data(static_cast<std::size_t>(count) * size_of(dtype));
  pattern.fill(data.data(), count, rank, first);
  return data;
}

/// Elements as doubles: exact for a Pattern, except for 64-bit random integers.
std::vector<double> as_doubles(const std::vector<std::byte>& data, DType dtype) {
  std::vector<double> values;
  visit_dtype(dtype == DType::boolean ? DType::u8 : dtype, [&]<typename T>() {
    for (std::size_t at = 0; at < data.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, data.data() + at, sizeof(T));
      if constexpr (std::is_arithmetic_v<T>)
        values.push_back(static_cast<double>(value));
      else if constexpr (test::is_complex_type<T>)
        values.insert(values.end(), {value.real(), value.imag()});
      else
        values.push_back(static_cast<double>(static_cast<float>(value)));
    }
  });
  return values;
}

/// The largest n such that the float type represents all integers up to n.
double exact_limit(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 2048;
    case DType::bf16:
      return 256;
    case DType::f32:
      return 16777216;
    case DType::f8e4m3:
      return 16;
    case DType::f8e5m2:
      return 8;
    default:
      return 9007199254740992;
  }
}

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (int d = 0; d < dtype_count; ++d) dtypes.push_back(static_cast<DType>(d));
  return dtypes;
}

TEST(Pattern, EverySumOfFloatsIsExactInTheDtypeForManyRanks) {
  for (const DType dtype : all_dtypes()) {
    if (!is_float(dtype)) continue;
    for (const Kind op : {Kind::sum, Kind::avg, Kind::premul_sum}) {
      for (const int ranks : {1, 2, 3, 8, 9, 100, 300}) {
        const Pattern pattern(dtype, op, ranks, seed);
        std::vector<double> sums(static_cast<std::size_t>(count), 0);
        for (int rank = 0; rank < ranks; ++rank) {
          const auto values = as_doubles(filled(pattern, dtype, rank), dtype);
          const double scale = op == Kind::premul_sum ? Pattern::scale_of(rank) : 1;
          for (std::size_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(values[i], std::floor(values[i]));
            sums[i] += values[i] * scale;
          }
        }
        for (const double sum : sums) ASSERT_LE(sum, exact_limit(dtype)) << name_of(dtype) << ranks;
      }
    }
  }
}

TEST(Pattern, ASumOfOneDtypeCanBeExactInAnother) {
  for (const DType exact_in : {DType::f16, DType::bf16, DType::f64})
    for (const int ranks : {1, 3, 300}) {
      const Pattern pattern(DType::f32, Kind::sum, ranks, seed, exact_in);
      std::vector<double> sums(static_cast<std::size_t>(count), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto values = as_doubles(filled(pattern, DType::f32, rank), DType::f32);
        for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
      }
      const double largest = *std::max_element(sums.begin(), sums.end());
      EXPECT_LE(largest, std::min(exact_limit(exact_in), exact_limit(DType::f32)));
      EXPECT_GT(largest, 0);
    }
}

TEST(Pattern, EveryProductFitsIntoAnyDtype) {
  for (const DType dtype : all_dtypes()) {
    if (dtype == DType::boolean || is_complex(dtype)) continue;
    for (const int ranks : {2, 7, 100}) {
      const Pattern pattern(dtype, Kind::prod, ranks, seed);
      std::vector<double> products(static_cast<std::size_t>(count), 1);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto values = as_doubles(filled(pattern, dtype, rank), dtype);
        for (std::size_t i = 0; i < values.size(); ++i) products[i] *= values[i];
      }
      double largest = 0;
      for (const double product : products) largest = std::max(largest, product);
      EXPECT_LE(largest, 64);
      EXPECT_GE(largest, 4) << name_of(dtype) << " ranks " << ranks;
    }
  }
}

TEST(Pattern, ValuesDifferBetweenRanksIndicesAndSeeds) {
  for (const DType dtype : all_dtypes()) {
    const Pattern pattern(dtype, std::nullopt, 3, seed);
    const auto base = filled(pattern, dtype, 0);
    const auto differs = [&](const std::vector<std::byte>& other) {
      const auto a = as_doubles(base, dtype);
      const auto b = as_doubles(other, dtype);
      std::int64_t n = 0;
      for (std::size_t i = 0; i < a.size(); ++i) n += a[i] != b[i] ? 1 : 0;
      return n;
    };
    EXPECT_GT(differs(filled(pattern, dtype, 1)), count / 3) << name_of(dtype);
    EXPECT_GT(differs(filled(pattern, dtype, 0, 1)), count / 3) << name_of(dtype);
    EXPECT_GT(differs(filled(Pattern(dtype, std::nullopt, 3, seed + 1), dtype, 0)), count / 3);
  }
}

template <typename T>
std::vector<T> typed(const Pattern& pattern, DType dtype, int rank) {
  std::vector<T> values(static_cast<std::size_t>(count));
  EXPECT_EQ(sizeof(T), size_of(dtype));
  pattern.fill(values.data(), count, rank, 0);
  return values;
}

TEST(Pattern, CheckAcceptsTheSumWrittenTheSlowWay) {
  const Pattern pattern(DType::f32, Kind::sum, 3, seed);
  std::vector<float> sum(static_cast<std::size_t>(count), 0);
  for (const int rank : {2, 0, 1}) {  // Any order.
    const auto values = typed<float>(pattern, DType::f32, rank);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  EXPECT_EQ(pattern.check(sum.data(), count, {0, 3, 0}).count, 0);
  EXPECT_EQ(pattern.check(sum.data() + 5, count - 5, {0, 3, 5}).count, 0);
  EXPECT_GT(pattern.check(sum.data(), count, {0, 2, 0}).count, count / 2);
  EXPECT_GT(pattern.check(sum.data(), count, {0, 3, 1}).count, count / 2);
}

TEST(Pattern, CheckAcceptsBitwiseResultsOf64BitIntegers) {
  for (const Kind op : {Kind::band, Kind::bor, Kind::bxor}) {
    const Pattern pattern(DType::u64, op, 3, seed);
    auto result = typed<std::uint64_t>(pattern, DType::u64, 0);
    for (const int rank : {1, 2}) {
      const auto values = typed<std::uint64_t>(pattern, DType::u64, rank);
      for (std::size_t i = 0; i < result.size(); ++i) {
        if (op == Kind::band) result[i] &= values[i];
        if (op == Kind::bor) result[i] |= values[i];
        if (op == Kind::bxor) result[i] ^= values[i];
      }
    }
    EXPECT_EQ(pattern.check(result.data(), count, {0, 3, 0}).count, 0) << name_of(op);
    // A missing rank is detected in every element that it decides.
    EXPECT_GT(pattern.check(result.data(), count, {0, 2, 0}).count, count / 5) << name_of(op);
  }
}

TEST(Pattern, BooleanSumsAreOrAndProductsAreAnd) {
  for (const Kind op : {Kind::sum, Kind::max, Kind::bor, Kind::prod, Kind::min, Kind::band}) {
    const Pattern pattern(DType::boolean, op, 3, seed);
    auto result = typed<std::uint8_t>(pattern, DType::boolean, 0);
    int ones = 0;
    for (std::size_t i = 0; i < result.size(); ++i) {
      for (const int rank : {1, 2}) {
        const auto value = typed<std::uint8_t>(pattern, DType::boolean, rank)[i];
        ASSERT_LE(value, 1);
        const bool is_or = op == Kind::sum || op == Kind::max || op == Kind::bor;
        result[i] = static_cast<std::uint8_t>(is_or ? result[i] | value : result[i] & value);
      }
      ones += result[i];
    }
    EXPECT_EQ(pattern.check(result.data(), count, {0, 3, 0}).count, 0) << name_of(op);
    EXPECT_GT(ones, count / 4) << name_of(op);
    EXPECT_LT(ones, count * 3 / 4) << name_of(op);
  }
}

TEST(Pattern, MinAndMaxSeeNegativeNumbers) {
  const Pattern pattern(DType::i8, Kind::min, 2, seed);
  auto least = typed<std::int8_t>(pattern, DType::i8, 0);
  const auto other = typed<std::int8_t>(pattern, DType::i8, 1);
  int negative = 0;
  for (std::size_t i = 0; i < least.size(); ++i) {
    least[i] = std::min(least[i], other[i]);
    negative += least[i] < 0 ? 1 : 0;
  }
  EXPECT_EQ(pattern.check(least.data(), count, {0, 2, 0}).count, 0);
  EXPECT_GT(negative, count / 2);
}

TEST(Pattern, AveragesAreRoundedOnceAndIntegersTruncate) {
  const Pattern floats(DType::f32, Kind::avg, 3, seed);
  std::vector<float> mean(static_cast<std::size_t>(count), 0);
  for (const int rank : {0, 1, 2}) {
    const auto values = typed<float>(floats, DType::f32, rank);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[i];
  }
  for (float& x : mean) x /= 3.0F;
  EXPECT_EQ(floats.check(mean.data(), count, {0, 3, 0}).count, 0);

  const Pattern integers(DType::u8, Kind::avg, 3, seed);
  std::vector<int> sums(static_cast<std::size_t>(count), 0);
  for (const int rank : {0, 1, 2}) {
    const auto values = typed<std::uint8_t>(integers, DType::u8, rank);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  std::vector<std::uint8_t> truncated;
  for (const int sum : sums) {
    ASSERT_LE(sum, 255);
    truncated.push_back(static_cast<std::uint8_t>(sum / 3));
  }
  EXPECT_EQ(integers.check(truncated.data(), count, {0, 3, 0}).count, 0);
}

TEST(Pattern, NoRankIsTheIdentityOfTheOperation) {
  const auto expect = [](DType dtype, Kind op, auto value) {
    const Pattern pattern(dtype, op, 2, seed);
    EXPECT_EQ(pattern.check(&value, 1, {0, 0, 0}).count, 0) << name_of(dtype) << " " << name_of(op);
  };
  expect(DType::f32, Kind::sum, 0.0F);
  expect(DType::f64, Kind::prod, 1.0);
  expect(DType::f32, Kind::min, std::numeric_limits<float>::infinity());
  expect(DType::bf16, Kind::max, BFloat16(-std::numeric_limits<float>::infinity()));
  expect(DType::f8e4m3, Kind::max, Float8E4M3(-448.0F));
  expect(DType::i32, Kind::max, std::numeric_limits<std::int32_t>::min());
  expect(DType::u64, Kind::min, std::numeric_limits<std::uint64_t>::max());
  expect(DType::u64, Kind::band, ~std::uint64_t{0});
  expect(DType::boolean, Kind::min, std::uint8_t{1});
  expect(DType::boolean, Kind::max, std::uint8_t{0});
}

TEST(Pattern, OneFlippedBitIsOneWrongElementWithItsPlaceAndValues) {
  const Pattern pattern(DType::i32, std::nullopt, 2, seed);
  auto data = typed<std::int32_t>(pattern, DType::i32, 1);
  const std::int32_t good = data[123];
  data[123] ^= 1;
  const Mismatches wrong = pattern.check(data.data(), count, {1, 2, 0});
  EXPECT_EQ(wrong.count, 1);
  ASSERT_TRUE(wrong.first);
  EXPECT_EQ(wrong.first->index, 123);
  EXPECT_EQ(wrong.first->expected, std::to_string(good));
  EXPECT_EQ(wrong.first->got, std::to_string(good ^ 1));
  EXPECT_EQ(pattern.check_filled(data.data(), count, 1, 0).count, 1);
  EXPECT_EQ(pattern.check_filled(data.data() + 124, count - 124, 1, 124).count, 0);
}

TEST(Pattern, ANaNAndAZeroOfTheWrongSignAreWrong) {
  const Pattern pattern(DType::f32, Kind::sum, 2, seed);
  std::vector<float> zero{-0.0F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(pattern.check(zero.data(), 2, {0, 0, 0}).count, 2);
  EXPECT_EQ(pattern.check(zero.data() + 1, 1, {0, 0, 0}).first->got, "nan");
}

}  // namespace
}  // namespace tutti::tool
