#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

const std::vector<Shape> row_shapes{{}, {3}, {2, 1, 3}, {257}};

class AllGather : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, AllGather, testing::ValuesIn(move_cells()), CaseName());

TEST_P(AllGather, KeepsRankOrder) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const Shape& row_shape : row_shapes) {
    for (const Layout& layout : layouts(world.size)) {
      const auto parts = make_parts(dtype, layout, row_shape);
      const Array want = concat(parts);
      on_ranks(world, [&](ProcessGroup& group) {
        SCOPED_TRACE("rows " + to_string(layout) + " of " + to_string(row_shape));
        const Array& mine = parts[index(group.rank())];
        for (const Rows& spelling : spellings(layout)) {
          const Buffer in(group, mine);
          const Buffer out(group, dtype, want.shape());
          group.all_gather(in, out, spelling);
          EXPECT_TRUE(same_bits(out.read(), want));
          EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
        }
        // In place: the input is this rank's own block of the output.
        const Buffer both(group, dtype, want.shape());
        const TensorView own = both.rows(offset(layout, group.rank()), layout[index(group.rank())]);
        group.memory().copy(own.data, mine.bytes().data(), own.bytes(), {});
        group.all_gather(own, both, layout);
        EXPECT_TRUE(same_bits(both.read(), want)) << "in place";
      });
    }
  }
}

TEST_P(AllGather, GivesTheSameAsynchronously) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const Layout& layout : layouts(world.size)) {
    const auto parts = make_parts(dtype, layout, {5}, 1);
    const Array want = concat(parts);
    on_ranks(world, [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(layout));
      const Buffer in(group, parts[index(group.rank())]);
      const Buffer out(group, dtype, want.shape());
      Work work;
      {
        const Layout lent = layout;  // The caller may reuse the list when the verb has returned.
        work = group.all_gather_async(in, out, lent);
      }
      work.wait();
      EXPECT_TRUE(same_bits(out.read(), want));
    });
  }
}

// A 0-dimensional array is one row.
TEST_P(AllGather, GathersScalars) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const auto parts = make_inputs(dtype, {}, world.size, Fill::bits, ReduceOp::Kind::sum, 9);
  const Array want = concat(parts);
  on_ranks(world, [&](ProcessGroup& group) {
    const Buffer in(group, parts[index(group.rank())]);
    const Buffer out(group, dtype, {world.size});
    group.all_gather(in, out);
    EXPECT_TRUE(same_bits(out.read(), want));
  });
}

}  // namespace
}  // namespace tutti::test
