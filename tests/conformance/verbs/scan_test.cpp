#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Scan : public testing::TestWithParam<ReduceCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, Scan, testing::ValuesIn(scan_cells()), CaseName());

TEST_P(Scan, FoldsTheRanksUpToItsOwn) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  for (const Variant& variant : variants(world.backend)) {
    for (const std::int64_t count : {1, 17, 4099}) {
      const auto inputs = make_inputs(dtype, {count}, world.size, variant.fill, kind, 6);
      const auto scales = make_scales(world.size, variant.fill);
      on_ranks(world, [&](ProcessGroup& group) {
        SCOPED_TRACE(to_string(variant) + ", count " + std::to_string(count));
        const int rank = group.rank();
        const Array& mine = inputs[index(rank)];
        const ReduceOp op = op_of(kind, scales, rank);
        const Array want = reduce_in_order(kind, std::span(inputs).first(index(rank + 1)), scales);

        const Buffer in(group, mine);
        const Buffer out(group, dtype, {count});
        group.scan(in, out, op, options_of(variant));
        EXPECT_TRUE(same(out.read(), want));
        EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";

        const Buffer both(group, mine);
        group.scan(both, both, op, options_of(variant));
        EXPECT_TRUE(same(both.read(), want)) << "in place";

        const Buffer later(group, dtype, {count});
        group.scan_async(in, later, op, options_of(variant)).wait();
        EXPECT_TRUE(same(later.read(), want)) << "asynchronously";
      });
    }
  }
}

TEST_P(Scan, ExclusiveFoldsTheRanksBeforeItsOwn) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const ReduceOp::Kind kind = GetParam().kind;
  for (const Variant& variant : variants(world.backend)) {
    for (const std::int64_t count : {1, 17, 4099}) {
      const auto inputs = make_inputs(dtype, {count}, world.size, variant.fill, kind, 7);
      const auto scales = make_scales(world.size, variant.fill);
      on_ranks(world, [&](ProcessGroup& group) {
        SCOPED_TRACE(to_string(variant) + ", count " + std::to_string(count));
        const int rank = group.rank();
        const Array& mine = inputs[index(rank)];
        const ReduceOp op = op_of(kind, scales, rank);
        const Array want =
            rank == 0 ? identity(kind, dtype, {count})
                      : reduce_in_order(kind, std::span(inputs).first(index(rank)), scales);

        const Buffer in(group, mine);
        const Buffer out(group, dtype, {count});
        group.exclusive_scan(in, out, op, options_of(variant));
        EXPECT_TRUE(same(out.read(), want));
        EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";

        const Buffer both(group, mine);
        group.exclusive_scan(both, both, op, options_of(variant));
        EXPECT_TRUE(same(both.read(), want)) << "in place";

        const Buffer later(group, dtype, {count});
        group.exclusive_scan_async(in, later, op, options_of(variant)).wait();
        EXPECT_TRUE(same(later.read(), want)) << "asynchronously";
      });
    }
  }
}

}  // namespace
}  // namespace tutti::test
