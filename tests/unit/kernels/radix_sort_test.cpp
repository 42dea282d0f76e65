#include "kernels/radix_sort.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::internal {
namespace {

template <typename Score>
void expect_ordered_keys() {
  using Limits = std::numeric_limits<Score>;
  const std::vector<Score> ascending{Limits::lowest(),      Score{-1},     -Limits::min(),
                                     -Limits::denorm_min(), Score{-0.0},   Score{0},
                                     Limits::denorm_min(),  Limits::min(), Score{1},
                                     Limits::max()};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const auto back = score_of(ordered_key(ascending[i]));
    EXPECT_EQ(back, ascending[i]);
    EXPECT_EQ(std::signbit(back), std::signbit(ascending[i]));
    if (i > 0) {
      EXPECT_LT(ordered_key(ascending[i - 1]), ordered_key(ascending[i]));
    }
  }
}

TEST(OrderedKey, HasTheOrderOfTheScoresAndGivesThemBack) {
  expect_ordered_keys<float>();
  expect_ordered_keys<double>();
}

TEST(RadixSort, SortsAndKeepsTheOrderOfEqualKeys) {
  std::mt19937_64 random(5);
  struct Item {
    std::uint64_t key;
    std::size_t index;
  };
  for (const std::size_t count : {0U, 1U, 2U, 300U, 5000U})
    for (const std::uint64_t mask : {std::uint64_t{0}, std::uint64_t{0xff},
                                     std::uint64_t{0x3f000000000000f0}, ~std::uint64_t{0}}) {
      Raw<Item> items(count);
      for (std::size_t i = 0; i < count; ++i) items[i] = {random() & mask, i};
      auto want = items;
      std::ranges::stable_sort(want, {}, &Item::key);
      radix_sort(items, [](const Item& item) { return item.key; });
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(items[i].key, want[i].key) << count << " items, mask " << mask;
        ASSERT_EQ(items[i].index, want[i].index) << count << " items, mask " << mask;
      }
    }
}

}  // namespace
}  // namespace tutti::internal
