#include <algorithm>

#include "conformance/cells.hpp"
#include "support/gather_bounded.hpp"

// An operation of the SPI without a verb, issued as the front issues it in a gather of unknown
// sizes.

namespace tutti::test {
namespace {

class AllGatherBounded : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, AllGatherBounded, testing::ValuesIn(move_cells()), CaseName());

/// The result on every rank: the rows of each at their offset, poison after them.
void put_blocks(Array& out, const std::vector<Array>& parts, std::int64_t bound) {
  if (out.numel() == 0) return;
  const auto row = static_cast<std::int64_t>(out.bytes().size()) / out.shape().rows();
  for (int r = 0; r < static_cast<int>(parts.size()); ++r)
    std::ranges::copy(parts[index(r)].bytes(), out.bytes().begin() + r * bound * row);
}

TEST_P(AllGatherBounded, WritesTheRowsOfEachRankAndNothingElse) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const Shape& row_shape : {Shape{}, Shape{3}, Shape{257}}) {
    for (const Layout& layout : layouts(world.size)) {
      const std::int64_t most = std::ranges::max(layout);
      const auto parts = make_parts(dtype, layout, row_shape);
      for (const std::int64_t bound : {most, most + 1, most + 100}) {
        on_ranks(world, [&](ProcessGroup& group) {
          SCOPED_TRACE("rows " + to_string(layout) + " of " + to_string(row_shape) + ", room for " +
                       std::to_string(bound));
          const Array& mine = parts[index(group.rank())];
          const Buffer in(group, mine);
          const Buffer out(group, dtype, mine.shape().with_rows(bound * world.size));
          Array want = out.read();
          put_blocks(want, parts, bound);
          gather_bounded(group, in, out);
          EXPECT_TRUE(same_bits(out.read(), want));
          EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
        });
      }
    }
  }
}

TEST_P(AllGatherBounded, GivesTheSameAsynchronouslyAndInPlace) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  constexpr std::int64_t bound = 7;
  for (const Layout& layout : layouts(world.size)) {
    if (std::ranges::max(layout) > bound) continue;
    const auto parts = make_parts(dtype, layout, {5}, 1);
    on_ranks(world, [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(layout));
      const Array& mine = parts[index(group.rank())];
      const Buffer out(group, dtype, {bound * world.size, 5});
      const TensorView own = out.rows(group.rank() * bound, mine.shape().rows());
      Array want = out.read();
      put_blocks(want, parts, bound);
      if (own.bytes() != 0) group.memory().copy(own.data, mine.bytes().data(), own.bytes(), {});
      gather_bounded_async(group, own, out).wait();
      EXPECT_TRUE(same_bits(out.read(), want));
    });
  }
}

class AllGatherBoundedWorlds : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AllGatherBoundedWorlds, testing::ValuesIn(worlds()), CaseName());

// Longer than any message of a transport.
TEST_P(AllGatherBoundedWorlds, BlocksMayBeLarge) {
  const World& world = GetParam();
  const bool small = reduced() || world.backend == "nccl_double";
  const std::int64_t bound = ((small ? 4 : 9) << 20) + 3;
  std::vector<Array> parts;
  for (int r = 0; r < world.size; ++r) {
    parts.emplace_back(DType::u8, Shape{r * (bound / world.size)});
    std::ranges::fill(parts.back().bytes(), static_cast<std::byte>(r));
  }
  on_ranks(world, [&](ProcessGroup& group) {
    const Buffer in(group, parts[index(group.rank())]);
    const Buffer out(group, DType::u8, {bound * group.size()});
    Array want = out.read();
    put_blocks(want, parts, bound);
    gather_bounded(group, in, out);
    EXPECT_TRUE(same_bits(out.read(), want));
  });
}

// A refused call has no effect: the next call has the same number on all ranks.
TEST_P(AllGatherBoundedWorlds, MoreRowsThanThereIsRoomForAreRefusedByName) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const Buffer in(group, Array(DType::f32, {3}));
    const Buffer out(group, DType::f32, {2 * group.size()});
    expect_error(Errc::invalid_argument, {"in is [3], which has 3 rows; out"},
                 [&] { gather_bounded(group, in, out); });
    gather_bounded(group, in.rows(0, 2), out);
  });
}

}  // namespace
}  // namespace tutti::test
