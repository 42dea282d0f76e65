#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Scan : public testing::TestWithParam<ReduceCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, Scan, testing::ValuesIn(scan_cells()), CaseName());

void check_scan(const ReduceCell& cell, bool exclusive) {
  const auto scan = exclusive ? &ProcessGroup::exclusive_scan : &ProcessGroup::scan;
  const auto scan_async =
      exclusive ? &ProcessGroup::exclusive_scan_async : &ProcessGroup::scan_async;
  const World& world = cell.world;
  const DType dtype = cell.dtype;
  const ReduceOp::Kind kind = cell.kind;
  for (const Variant& variant : variants(world.backend, dtype, kind)) {
    for (const std::int64_t count : {1, 17, 4099}) {
      const auto inputs = make_inputs(dtype, {count}, world.size, variant.fill, kind, 6);
      const auto scales = make_scales(world.size, variant.fill);
      on_ranks(world, [&](ProcessGroup& group) {
        SCOPED_TRACE(to_string(variant) + ", count " + std::to_string(count));
        const int rank = group.rank();
        const Array& mine = inputs[index(rank)];
        const ReduceOp op = op_of(kind, scales, rank);
        const auto before = std::span(inputs).first(index(rank) + (exclusive ? 0 : 1));
        const Array want = before.empty() ? identity(kind, dtype, {count})
                                          : result_of(variant, kind, before, scales);

        const Buffer in(group, mine);
        const Buffer out(group, dtype, {count});
        (group.*scan)(in, out, op, options_of(variant));
        EXPECT_TRUE(same(out.read(), want));
        EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";

        const Buffer both(group, mine);
        (group.*scan)(both, both, op, options_of(variant));
        EXPECT_TRUE(same(both.read(), want)) << "in place";

        const Buffer later(group, dtype, {count});
        (group.*scan_async)(in, later, op, options_of(variant)).wait();
        EXPECT_TRUE(same(later.read(), want)) << "asynchronously";
      });
    }
  }
}

TEST_P(Scan, FoldsTheRanksUpToItsOwn) {
  check_scan(GetParam(), false);
}

TEST_P(Scan, ExclusiveFoldsTheRanksBeforeItsOwn) {
  check_scan(GetParam(), true);
}

}  // namespace
}  // namespace tutti::test
