#include "kernels/copy.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace tutti::internal {
namespace {

TEST(CopyPastCache, CopiesAnyRangeAndNoByteMore) {
  constexpr std::size_t room = 64;
  for (const std::size_t bytes :
       std::to_array<std::size_t>({0, 1, 63, 64, 4095, 4096, 4097, 70000}))
    for (std::size_t from = 0; from < room; from += 7)
      for (std::size_t to = 0; to < room; to += 9) {
        std::vector<std::byte> source(bytes + room);
        for (std::size_t i = 0; i < source.size(); ++i)
          source[i] = static_cast<std::byte>(i * 37 % 251 + 1);
        std::vector<std::byte> target(bytes + 2 * room);
        copy_past_cache(target.data() + to, source.data() + from, bytes);
        for (std::size_t i = 0; i < target.size(); ++i)
          ASSERT_EQ(target[i], i < to || i >= to + bytes ? std::byte{} : source[from + i - to])
              << "byte " << i << " of " << bytes << " bytes from " << from << " to " << to;
      }
}

TEST(CopyPastCache, KnowsTheCache) {
  EXPECT_GE(last_level_cache(), std::size_t{64} << 10);
  EXPECT_EQ(last_level_cache(), last_level_cache());
}

}  // namespace
}  // namespace tutti::internal
