#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class ReduceScatter : public testing::TestWithParam<ReduceCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, ReduceScatter, testing::ValuesIn(reduce_cells()), CaseName());

TEST_P(ReduceScatter, GivesEachRankItsRowsOfTheFold) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  const Shape row_shape{13};
  for (const Variant& variant : variants(world.backend, dtype, kind)) {
    for (const Layout& layout : layouts(world.size)) {
      const auto inputs =
          make_inputs(dtype, rows_of(total(layout), row_shape), world.size, variant.fill, kind, 4);
      const auto scales = make_scales(world.size, variant.fill);
      const Array all = result_of(variant, kind, inputs, scales);
      on_ranks(world, [&](ProcessGroup& group) {
        SCOPED_TRACE(to_string(variant) + ", rows " + to_string(layout));
        const int rank = group.rank();
        const std::int64_t rows = layout[index(rank)];
        const std::int64_t first = offset(layout, rank);
        const Array& mine = inputs[index(rank)];
        const Array want = all.rows(first, rows);
        const ReduceOp op = op_of(kind, scales, rank);
        for (const Rows& spelling : spellings(layout)) {
          const Buffer in(group, mine);
          const Buffer out(group, dtype, rows_of(rows, row_shape));
          group.reduce_scatter(in, out, spelling, op, options_of(variant));
          EXPECT_TRUE(same(out.read(), want));
          EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
        }
        // In place: the output is this rank's own block of the input.
        const Buffer both(group, mine);
        group.reduce_scatter(both, both.rows(first, rows), layout, op, options_of(variant));
        EXPECT_TRUE(same(both.read().rows(first, rows), want)) << "in place";
      });
    }
  }
}

TEST_P(ReduceScatter, GivesTheSameAsynchronously) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  const Variant variant = can_fix_order(world.backend) ? Variant{Fill::rough, true} : Variant{};
  Layout layout(index(world.size), 3);
  layout.back() = 0;
  layout.front() = 4;
  const auto inputs = make_inputs(dtype, {total(layout)}, world.size, variant.fill, kind, 5);
  const auto scales = make_scales(world.size, variant.fill);
  const Array all = reduce_in_order(kind, inputs, scales);
  on_ranks(world, [&](ProcessGroup& group) {
    const int rank = group.rank();
    const std::int64_t rows = layout[index(rank)];
    const Buffer in(group, inputs[index(rank)]);
    const Buffer out(group, dtype, {rows});
    Work work;
    {
      const Layout lent = layout;  // The caller may reuse the list when the verb has returned.
      work =
          group.reduce_scatter_async(in, out, lent, op_of(kind, scales, rank), options_of(variant));
    }
    work.wait();
    EXPECT_TRUE(same(out.read(), all.rows(offset(layout, rank), rows)));
  });
}

}  // namespace
}  // namespace tutti::test
