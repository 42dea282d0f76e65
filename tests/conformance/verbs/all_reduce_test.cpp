#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class AllReduce : public testing::TestWithParam<ReduceCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, AllReduce, testing::ValuesIn(reduce_cells()), CaseName());

// Both forms, each compared with the left fold.
TEST_P(AllReduce, GivesTheFoldOverRanksOnEveryRank) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  for (const Variant& variant : variants(world.backend, dtype, kind)) {
    for (const std::int64_t count : counts()) {
      const auto inputs = make_inputs(dtype, {count}, world.size, variant.fill, kind);
      const auto scales = make_scales(world.size, variant.fill);
      const Array want = result_of(variant, kind, inputs, scales);
      on_ranks(world, [&](ProcessGroup& group) {
        SCOPED_TRACE(to_string(variant) + ", count " + std::to_string(count));
        const int rank = group.rank();
        const Array& mine = inputs[index(rank)];
        const ReduceOp op = op_of(kind, scales, rank);

        const Buffer in(group, mine);
        const Buffer out(group, dtype, {count});
        group.all_reduce(in, out, op, options_of(variant));
        EXPECT_TRUE(same(out.read(), want));
        EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";

        const Buffer both(group, mine);
        group.all_reduce(both, op, options_of(variant));
        EXPECT_TRUE(same(both.read(), want)) << "in place";
      });
    }
  }
}

TEST_P(AllReduce, GivesTheSameAsynchronously) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  constexpr std::int64_t count = 257;
  const Variant variant = can_fix_order(world.backend) ? Variant{Fill::rough, true} : Variant{};
  const auto inputs = make_inputs(dtype, {count}, world.size, variant.fill, kind, 1);
  const auto scales = make_scales(world.size, variant.fill);
  const Array want = reduce_in_order(kind, inputs, scales);
  on_ranks(world, [&](ProcessGroup& group) {
    const ReduceOp op = op_of(kind, scales, group.rank());
    const Buffer in(group, inputs[index(group.rank())]);
    const Buffer out(group, dtype, {count});
    const Buffer both(group, inputs[index(group.rank())]);
    Work apart = group.all_reduce_async(in, out, op, options_of(variant));
    Work in_place = group.all_reduce_async(both, op, options_of(variant));
    in_place.wait();
    apart.wait();
    EXPECT_TRUE(same(out.read(), want));
    EXPECT_TRUE(same(both.read(), want)) << "in place";
  });
}

}  // namespace
}  // namespace tutti::test
