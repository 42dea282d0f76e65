#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Reduce : public testing::TestWithParam<ReduceCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, Reduce, testing::ValuesIn(reduce_cells()), CaseName());

TEST_P(Reduce, GivesTheFoldOverRanksOnTheRootAlone) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  for (const Variant& variant : variants(world.backend, dtype, kind)) {
    for (const std::int64_t count : {std::int64_t{3}, counts().back()}) {
      const auto inputs = make_inputs(dtype, {count}, world.size, variant.fill, kind, 2);
      const auto scales = make_scales(world.size, variant.fill);
      const Array want = result_of(variant, kind, inputs, scales);
      on_ranks(world, [&](ProcessGroup& group) {
        const int rank = group.rank();
        const Array& mine = inputs[index(rank)];
        const ReduceOp op = op_of(kind, scales, rank);
        for (int root = 0; root < world.size; ++root) {
          SCOPED_TRACE(to_string(variant) + ", count " + std::to_string(count) + ", root " +
                       std::to_string(root));
          const Buffer in(group, mine);
          const Buffer out(group, dtype, {count});
          const Array before = out.read();
          group.reduce(in, out, root, op, options_of(variant));
          EXPECT_TRUE(same(out.read(), rank == root ? want : before));
          EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";

          // In place on the root; the other ranks have no output.
          const Buffer both(group, mine);
          group.reduce(both, rank == root ? both.view() : TensorView(), root, op,
                       options_of(variant));
          EXPECT_TRUE(same(both.read(), rank == root ? want : mine)) << "in place";
        }
      });
    }
  }
}

TEST_P(Reduce, GivesTheSameAsynchronously) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  const Variant variant = can_fix_order(world.backend) ? Variant{Fill::rough, true} : Variant{};
  const int root = world.size - 1;
  const auto inputs = make_inputs(dtype, {33}, world.size, variant.fill, kind, 3);
  const auto scales = make_scales(world.size, variant.fill);
  const Array want = reduce_in_order(kind, inputs, scales);
  on_ranks(world, [&](ProcessGroup& group) {
    const Buffer in(group, inputs[index(group.rank())]);
    const Buffer out(group, dtype, {33});
    group
        .reduce_async(in, group.rank() == root ? out.view() : TensorView(), root,
                      op_of(kind, scales, group.rank()), options_of(variant))
        .wait();
    if (group.rank() != root) return;
    EXPECT_TRUE(same(out.read(), want));
  });
}

}  // namespace
}  // namespace tutti::test
