#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Broadcast : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, Broadcast, testing::ValuesIn(move_cells()), CaseName());

TEST_P(Broadcast, GivesEveryRankWhatTheRootHas) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const std::int64_t count : counts()) {
    const auto inputs = make_inputs(dtype, {count}, world.size, Fill::bits, ReduceOp::Kind::sum, 8);
    on_ranks(world, [&](ProcessGroup& group) {
      const Array& mine = inputs[index(group.rank())];
      for (int root = 0; root < world.size; ++root) {
        SCOPED_TRACE("count " + std::to_string(count) + ", root " + std::to_string(root));
        const Buffer data(group, mine);
        group.broadcast(data, root);
        EXPECT_TRUE(same_bits(data.read(), inputs[index(root)]));

        const Buffer later(group, mine);
        group.broadcast_async(later, root).wait();
        EXPECT_TRUE(same_bits(later.read(), inputs[index(root)])) << "asynchronously";
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test
