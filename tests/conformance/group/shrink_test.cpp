#include <utility>

#include "conformance/cells.hpp"

// Groups of the ranks that are left.

namespace tutti::test {
namespace {

class Shrink : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Shrink, testing::ValuesIn(worlds_of_several()), CaseName());

void expect_sums(ProcessGroup& group, int size) {
  EXPECT_EQ(group.size(), size);
  const Buffer data(group, array_of<float>({static_cast<float>(group.rank() + 1)}));
  group.all_reduce(data);
  EXPECT_TRUE(same(data.read(), array_of<float>({static_cast<float>(size * (size + 1) / 2)})));
}

TEST_P(Shrink, LeavesOutARankThatHasLeft) {
  RankBarrier done(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    const int gone = 0;  // Which numbers the others anew.
    const int rank = group.rank();
    if (rank == gone) {
      { const auto ended = std::move(group); }
      done.wait();
      return;
    }
    expect_error({Errc::peer_lost, Errc::aborted, Errc::timeout}, {},
                 [&] { group.barrier({.timeout = 5s}); });
    auto smaller = group.shrink(std::array{gone});
    EXPECT_EQ(smaller.rank(), rank - 1);
    EXPECT_EQ(smaller.name(), group.name());
    expect_sums(smaller, world().size - 1);
    done.wait();
  });
}

TEST_P(Shrink, WaitsForARankThatIsLate) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    group.abort("the test breaks it");
    expect_error(Errc::aborted, {}, [&] { group.barrier(); });
    if (group.rank() == last()) std::this_thread::sleep_for(100ms);
    auto again = group.shrink();
    expect_sums(again, world().size);
    // And once more, from a group that works.
    auto more = again.shrink();
    expect_sums(more, world().size);
  });
}

TEST_P(Shrink, LeavesOutARankThatDoesNotCallInTime) {
  RankBarrier done(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    group.abort("the test breaks it");
    if (group.rank() == last()) {
      done.wait();
      expect_error(Errc::peer_lost, {"rank " + std::to_string(last()), "agreed on the ranks 0"},
                   [&] { (void)group.shrink(); });
      return;
    }
    auto smaller = group.shrink({}, 300ms);
    expect_sums(smaller, world().size - 1);
    done.wait();
  });
}

TEST_P(Shrink, RefusesToLeaveOutItself) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    for (const int rank : {-1, group.size(), group.rank()})
      expect_error(Errc::invalid_argument, {"rank " + std::to_string(rank)},
                   [&] { (void)group.shrink(std::array{rank}); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
