#include "values/hash.hpp"

#include <cstdint>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

namespace {

using tutti::internal::Hash;

TEST(Hash, EveryBitCounts) {
  std::set<std::uint64_t> seen{Hash().value()};
  for (int bit = 0; bit < 64; ++bit) {
    Hash hash;
    hash.add(std::uint64_t{1} << bit);
    seen.insert(hash.value());
    Hash twice;
    twice.add(0);
    twice.add(std::uint64_t{1} << bit);
    seen.insert(twice.value());
  }
  EXPECT_EQ(seen.size(), 129U);
}

TEST(Hash, TextIsMoreThanItsWords) {
  const auto of = [](std::string_view text) {
    Hash hash;
    hash.add(text);
    return hash.value();
  };
  using namespace std::string_view_literals;
  EXPECT_NE(of(""), of("\0"sv));
  EXPECT_NE(of("a"), of("a\0"sv));
  EXPECT_NE(of("12345678"), of("123456789"));
  EXPECT_NE(of("12345678"), of("12345679"));
}

TEST(Hash, IsTheSameOnEveryHost) {
  Hash hash;
  hash.add("what is saved on one host is loaded on another");
  EXPECT_EQ(hash.value(), 0xba49ee5a08d6a1e9U);
}

}  // namespace
