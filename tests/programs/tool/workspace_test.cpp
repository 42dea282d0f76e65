#include "bench/workspace.hpp"

#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

std::byte* bytes(const TensorView& view) {
  return static_cast<std::byte*>(view.data);
}

TEST(Workspace, AByteBehindTheArrayIsDamageAtTheIndexPastItsEnd) {
  Workspace workspace(host_memory());
  const Buffers set = workspace.lay_out({10, 10}, DType::f32, false, 1).front();
  set.out.paint_guards();
  EXPECT_EQ(set.out.damage(4).count, 0);
  bytes(set.arrays.out)[40] = std::byte{0x17};
  const Mismatches found = set.out.damage(4);
  EXPECT_EQ(found.count, 1);
  ASSERT_TRUE(found.first);
  EXPECT_EQ(found.first->index, 10);
  EXPECT_EQ(found.first->got, "byte 0x17");
}

TEST(Workspace, AByteBeforeTheArrayHasANegativeIndex) {
  Workspace workspace(host_memory());
  const Buffers set = workspace.lay_out({10, 10}, DType::f32, false, 1).front();
  set.in.paint_guards();
  static_cast<std::byte*>(const_cast<void*>(set.arrays.in.data))[-1] = std::byte{0};
  const Mismatches found = set.in.damage(4);
  EXPECT_EQ(found.count, 1);
  EXPECT_EQ(found.first->index, -1);
}

TEST(Workspace, TheGuardFollowsTheLastByteOfAnOddSize) {
  Workspace workspace(host_memory());
  const Buffers set = workspace.lay_out({0, 7}, DType::u8, false, 1).front();
  set.out.paint_guards();
  std::memset(set.arrays.out.data, 0, 7);
  EXPECT_EQ(set.out.damage(1).count, 0);
  bytes(set.arrays.out)[7] = std::byte{0};
  EXPECT_EQ(set.out.damage(1).count, 1);
}

TEST(Workspace, InPlaceTheBlockLiesWithinTheWhole) {
  Workspace workspace(host_memory());
  const Extent gather{5, 20, 15, 0};  // Rank 3 of 4.
  const Buffers set = workspace.lay_out(gather, DType::f64, true, 1).front();
  EXPECT_EQ(set.arrays.in.data, bytes(set.arrays.out) + 15 * 8);
  EXPECT_TRUE(set.shared);
  const Buffers apart = workspace.lay_out(gather, DType::f64, false, 1).front();
  const auto* in = static_cast<const std::byte*>(apart.arrays.in.data);
  EXPECT_TRUE(in + 5 * 8 <= bytes(apart.arrays.out) || in >= bytes(apart.arrays.out) + 20 * 8);
}

TEST(Workspace, MissingArraysStayEmpty) {
  Workspace workspace(host_memory());
  const Buffers set = workspace.lay_out({0, 0}, DType::f32, false, 1).front();
  EXPECT_EQ(set.arrays.in.data, nullptr);
  EXPECT_EQ(set.arrays.out.data, nullptr);
  EXPECT_EQ(workspace.lay_out({0, 4}, DType::i64, false, 1).front().arrays.in.dtype, DType::i64);
  set.in.paint_guards();
  set.out.poison();
  EXPECT_EQ(set.out.damage(4).count, 0);
}

TEST(Workspace, CopiesDoNotShareAPage) {
  Workspace workspace(host_memory());
  const auto sets = workspace.lay_out({2, 2}, DType::f32, false, 3);
  ASSERT_EQ(sets.size(), 3U);
  for (std::size_t i = 1; i < sets.size(); ++i)
    EXPECT_GE(bytes(sets[i].arrays.out) - bytes(sets[i - 1].arrays.out), 4096);
}

TEST(Workspace, ArraysAreAlignedToCacheLines) {
  Workspace workspace(host_memory());
  for (const std::int64_t n : {1, 3, 17, 1000}) {
    const Buffers set = workspace.lay_out({n, n}, DType::u8, false, 1).front();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(set.arrays.in.data) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(set.arrays.out.data) % 64, 0U);
  }
}

}  // namespace
}  // namespace tutti::tool
