#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

const std::vector<Shape> row_shapes{{}, {2, 3}};

class Gather : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, Gather, testing::ValuesIn(move_cells()), CaseName());

TEST_P(Gather, KeepsRankOrderOnTheRootAlone) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const Shape& row_shape : row_shapes) {
    for (const Layout& layout : layouts(world.size)) {
      const auto parts = make_parts(dtype, layout, row_shape, 2);
      const Array want = concat(parts);
      on_ranks(world, [&](ProcessGroup& group) {
        const int rank = group.rank();
        const Array& mine = parts[index(rank)];
        for (int root = 0; root < world.size; ++root) {
          SCOPED_TRACE("rows " + to_string(layout) + " of " + to_string(row_shape) + ", root " +
                       std::to_string(root));
          const bool at_root = rank == root;
          for (const Rows& spelling : spellings(layout)) {
            const Buffer in(group, mine);
            const Buffer out(group, dtype, want.shape());
            const Array before = out.read();
            group.gather(in, out, root, spelling);
            EXPECT_TRUE(same_bits(out.read(), at_root ? want : before));
            EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
          }
          const Buffer in(group, mine);
          const Buffer out(group, dtype, want.shape());
          group.gather_async(in, at_root ? out.view() : TensorView(), root, layout).wait();
          if (at_root) {
            EXPECT_TRUE(same_bits(out.read(), want)) << "asynchronously";
          }
          // In place: the root's input is its own block of the output.
          const Buffer both(group, dtype, want.shape());
          const TensorView own =
              at_root ? both.rows(offset(layout, rank), layout[index(rank)]) : in.view();
          if (at_root) group.memory().copy(own.data, mine.bytes().data(), own.bytes(), {});
          group.gather(own, at_root ? both.view() : TensorView(), root, layout);
          if (at_root) {
            EXPECT_TRUE(same_bits(both.read(), want)) << "in place";
          }
        }
      });
    }
  }
}

class Scatter : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, Scatter, testing::ValuesIn(move_cells()), CaseName());

TEST_P(Scatter, GivesEachRankItsRowsOfTheRoot) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const Shape& row_shape : row_shapes) {
    for (const Layout& layout : layouts(world.size)) {
      // A different array on every rank, so that a wrong root is detected.
      const auto inputs = make_inputs(dtype, rows_of(total(layout), row_shape), world.size,
                                      Fill::bits, ReduceOp::Kind::sum, 10);
      on_ranks(world, [&](ProcessGroup& group) {
        const int rank = group.rank();
        const std::int64_t rows = layout[index(rank)];
        const std::int64_t first = offset(layout, rank);
        const Array& mine = inputs[index(rank)];
        for (int root = 0; root < world.size; ++root) {
          SCOPED_TRACE("rows " + to_string(layout) + " of " + to_string(row_shape) + ", root " +
                       std::to_string(root));
          const bool at_root = rank == root;
          const Array want = inputs[index(root)].rows(first, rows);
          for (const Rows& spelling : spellings(layout)) {
            const Buffer in(group, mine);
            const Buffer out(group, dtype, rows_of(rows, row_shape));
            group.scatter(in, out, root, spelling);
            EXPECT_TRUE(same_bits(out.read(), want));
            EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
          }
          const Buffer in(group, mine);
          const Buffer out(group, dtype, rows_of(rows, row_shape));
          group.scatter_async(at_root ? in.view() : TensorView(), out, root, layout).wait();
          EXPECT_TRUE(same_bits(out.read(), want)) << "asynchronously";

          // In place: the root's output is its own block of the input.
          const Buffer part(group, dtype, rows_of(rows, row_shape));
          group.scatter(at_root ? in.view() : TensorView(),
                        at_root ? in.rows(first, rows) : part.view(), root, layout);
          EXPECT_TRUE(same_bits(at_root ? in.read().rows(first, rows) : part.read(), want))
              << "in place";
        }
      });
    }
  }
}

}  // namespace
}  // namespace tutti::test
