#include <atomic>
#include <thread>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Barrier : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Barrier, testing::ValuesIn(worlds()), CaseName());

TEST_P(Barrier, NoRankLeavesBeforeAllHaveEntered) {
  const World& world = GetParam();
  std::atomic<int> entered = 0;
  on_ranks(world, [&](ProcessGroup& group) {
    for (int round = 1; round <= 20; ++round) {
      // A different rank is late each time.
      if (round % world.size == group.rank()) std::this_thread::sleep_for(2ms);
      entered.fetch_add(1);
      group.barrier();
      EXPECT_GE(entered.load(), round * world.size) << "in round " << round;
    }
  });
}

TEST_P(Barrier, AnAsynchronousOneEndsWhenAllHaveEntered) {
  const World& world = GetParam();
  std::atomic<int> entered = 0;
  on_ranks(world, [&](ProcessGroup& group) {
    for (int round = 1; round <= 5; ++round) {
      if (round % world.size == group.rank()) std::this_thread::sleep_for(2ms);
      entered.fetch_add(1);
      Work work = group.barrier_async();
      work.wait();
      EXPECT_GE(entered.load(), round * world.size) << "in round " << round;
    }
  });
}

class BarrierOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, BarrierOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(BarrierOfSeveral, AWorkIsNotDoneWhileARankIsMissing) {
  const World& world = GetParam();
  RankBarrier looked(world.size);
  on_ranks(world, [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      looked.wait();
      group.barrier();
      return;
    }
    Work work = group.barrier_async();
    EXPECT_FALSE(work.wait_for(5ms));
    EXPECT_FALSE(work.done());
    looked.wait();
    work.wait();
  });
}

}  // namespace
}  // namespace tutti::test
