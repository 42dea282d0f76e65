#include <algorithm>
#include <cstring>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class AllGatherBounded : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, AllGatherBounded, testing::ValuesIn(move_cells()), CaseName());

/// What every rank has afterwards: the rows of each at its place, poison behind them.
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
          group.all_gather_bounded(in, out);
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
      Work work = group.all_gather_bounded_async(own, out);
      work.wait();
      EXPECT_TRUE(same_bits(out.read(), want));
    });
  }
}

class AllGatherBoundedWorlds : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AllGatherBoundedWorlds, testing::ValuesIn(worlds()), CaseName());

// Longer than any message of a transport.
TEST_P(AllGatherBoundedWorlds, BlocksMayBeLarge) {
  const World& world = GetParam();
  const std::int64_t bound = ((reduced() ? 4 : 9) << 20) + 3;
  on_ranks(world, [&](ProcessGroup& group) {
    std::vector<std::uint8_t> in(static_cast<std::size_t>(group.rank() * (bound / group.size())),
                                 static_cast<std::uint8_t>(group.rank()));
    std::vector<std::uint8_t> out(static_cast<std::size_t>(bound * group.size()), 255);
    group.all_gather_bounded(in, out);
    for (int r = 0; r < group.size(); ++r) {  // As a whole: a sanitizer looks at each access.
      const auto rows = static_cast<std::size_t>(r * (bound / group.size()));
      std::vector<std::uint8_t> want(static_cast<std::size_t>(bound), 255);
      std::fill_n(want.begin(), rows, static_cast<std::uint8_t>(r));
      EXPECT_EQ(std::memcmp(&out[static_cast<std::size_t>(r * bound)], want.data(), want.size()), 0)
          << "the rows of rank " << r;
    }
  });
}

// What was refused leaves no trace: the next call has the same numbers everywhere.
TEST_P(AllGatherBoundedWorlds, MoreRowsThanThereIsRoomForAreRefusedByName) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<float> in(3);
    std::vector<float> out(index(2 * group.size()));
    expect_error(Errc::invalid_argument, {"in is [3], which has 3 rows; out"},
                 [&] { group.all_gather_bounded(in, out); });
    group.all_gather_bounded(std::span(in).first(2), out);
  });
}

}  // namespace
}  // namespace tutti::test
