#include "bench/sizes.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

std::vector<std::int64_t> values(const std::string& spec) {
  std::vector<std::int64_t> values;
  for (const Size& size : parse_sizes(spec)) values.push_back(size.value);
  return values;
}

/// The text of the refusal of `spec`; empty if it is accepted.
std::string refusal(const std::string& spec) {
  try {
    parse_sizes(spec);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage) << spec;
    return failure.what();
  }
  return "";
}

using Values = std::vector<std::int64_t>;

TEST(Sizes, ARangeDoublesUnlessToldOtherwise) {
  EXPECT_EQ(values("8:64"), (Values{8, 16, 32, 64}));
  EXPECT_EQ(values("1K:64K:x4"), (Values{1024, 4096, 16384, 65536}));
  EXPECT_EQ(values("1M:3M:+1M"), (Values{1 << 20, 2 << 20, 3 << 20}));
}

TEST(Sizes, ARangeEndsAtOrBelowItsMaximum) {
  EXPECT_EQ(values("8:100"), (Values{8, 16, 32, 64}));
  EXPECT_EQ(values("1:10:+4"), (Values{1, 5, 9}));
  EXPECT_EQ(values("7:7"), (Values{7}));
  EXPECT_EQ(values("1G:9223372036854775807:x1000000000"),
            (Values{1LL << 30, (1LL << 30) * 1'000'000'000}));
}

TEST(Sizes, AListKeepsItsOrderAndMayHoldRanges) {
  EXPECT_EQ(values("4K,1M,100M"), (Values{4096, 1 << 20, 100 << 20}));
  EXPECT_EQ(values("1M,8:16,3"), (Values{1 << 20, 8, 16, 3}));
}

TEST(Sizes, LettersArePowersOf1024AndTrailingBytesMakeThemPowersOf1000) {
  EXPECT_EQ(values("1K,1M,1G,1T"), (Values{1LL << 10, 1LL << 20, 1LL << 30, 1LL << 40}));
  EXPECT_EQ(values("1KiB,1MiB,1GiB,1TiB"), values("1K,1M,1G,1T"));
  EXPECT_EQ(values("1KB,1MB,1GB,1TB"),
            (Values{1'000, 1'000'000, 1'000'000'000, 1'000'000'000'000}));
  EXPECT_EQ(values("7,7B"), (Values{7, 7}));
}

TEST(Sizes, ElementsBecomeBytesOfTheDtype) {
  const std::vector<Size> sizes = parse_sizes("100e");
  ASSERT_EQ(sizes.size(), 1U);
  EXPECT_EQ(bytes_of(sizes[0], DType::u8), 100);
  EXPECT_EQ(bytes_of(sizes[0], DType::bf16), 200);
  EXPECT_EQ(bytes_of(sizes[0], DType::f64), 800);
  EXPECT_EQ(values("1e:8e"), (Values{1, 2, 4, 8}));
  EXPECT_EQ(bytes_of(parse_sizes("100")[0], DType::f64), 100);
}

TEST(Sizes, ARefusalNamesTheToken) {
  const std::vector<std::pair<std::string, std::string>> bad{
      {"10Q", "'10Q'"},
      {"10k", "'10k'"},
      {"abc", "'abc'"},
      {"4K,,1M", "'4K,,1M'"},
      {"", "''"},
      {"0", "'0'"},
      {"-5", "'-5'"},
      {"1M:1K", "'1M:1K'"},
      {"8:64:x1", "'x1'"},
      {"8:64:y2", "'y2'"},
      {"8:64:", "''"},
      {"8:64:x2:x2", "'x2:x2'"},
      {"8:1Z", "'1Z'"},
      {"1e:1M", "'1e:1M'"},
      {"1M:4M:+1e", "'+1e'"},
      {"8:64:+0", "'0'"},
      {"1.5K", "'1.5K'"},
      {"9999999T", "'9999999T'"},
      {"99999999999999999999", "'99999999999999999999'"}};
  for (const auto& [spec, token] : bad) {
    const std::string line = refusal(spec);
    EXPECT_NE(line, "") << spec;
    EXPECT_NE(line.find(token), std::string::npos) << spec << ": " << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << spec;
  }
}

TEST(Sizes, ARangeOfTooManySizesIsRefusedAtOnce) {
  EXPECT_NE(refusal("1:1T:+1").find("1:1T:+1"), std::string::npos);
}

TEST(Sizes, ElementsThatDoNotFitIn63BitsAreRefused) {
  const Size size = parse_sizes("9223372036854775807e")[0];
  EXPECT_EQ(bytes_of(size, DType::u8), 9223372036854775807);
  EXPECT_THROW(bytes_of(size, DType::f16), Failure);
}

}  // namespace
}  // namespace tutti::tool
