#include <algorithm>
#include <sstream>
#include <string_view>
#include <thread>

#include <tutti/backend/backend_table.hpp>

#include "conformance/cells.hpp"

// Events that break a group: deadlines, ranks that are missing or gone, aborts. Every rank gets an
// error soon, with the first cause; later calls fail at once; a new group works.

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Time after its deadline in which a call must have ended.
constexpr auto grace = 500ms;
/// "At once".
constexpr auto at_once = 300ms;

/// The factor for these times: on a device (tests/backends/gpu) they include NCCL's abort.
int slowness() {
  const auto is_device = [](const BackendEntry& entry) { return entry.name.ends_with("_gpu"); };
  return std::ranges::any_of(backends(), is_device) ? 10 : 1;
}

void expect_within(Clock::time_point start, std::chrono::nanoseconds limit) {
  const auto took = Clock::now() - start;
  EXPECT_LT(took, slowness() * patience() * limit)
      << "took " << std::chrono::duration_cast<std::chrono::milliseconds>(took).count() << " ms";
}

/// True if the text names a rank: "rank 2", "ranks 1 2", "missing: 1 (not seen), 2 (has left)".
/// Without std::regex: libstdc++'s fills a table of the locale without a lock.
bool names_rank(const std::string& text, int rank) {
  for (const std::string_view word : {"rank ", "ranks ", "missing: "}) {
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      std::istringstream list(text.substr(at + word.size()));
      for (int number = 0; list >> number;) {
        if (number == rank) return true;
        std::string note;
        if ((list >> std::ws).peek() == '(') std::getline(list, note, ')');
        if (list.peek() == ',') list.get();
      }
    }
  }
  return false;
}

/// Checks that a rank of the group gets an error now, and only errors afterwards.
void expect_broken(ProcessGroup& group, const std::string& cause) {
  const auto start = Clock::now();
  const Buffer data(group, array_of<float>({1}));
  expect_error(Errc::aborted, {cause}, [&] { group.barrier(); });
  expect_error(Errc::aborted, {cause}, [&] { group.all_reduce(data); });
  expect_error(Errc::aborted, {cause}, [&] { group.all_reduce_async(data).wait(); });
  expect_error(Errc::aborted, {cause}, [&] { group.send(data, 0); });
  expect_error(Errc::aborted, {cause}, [&] { group.recv_async(data, 0).wait(); });
  expect_within(start, at_once);
}

class Failures : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Failures, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(Failures, ALateRankWithinTheDeadlineIsFine) {
  on_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == last()) std::this_thread::sleep_for(50ms);
    const Buffer data(group, array_of<float>({1}));
    group.all_reduce(data, ReduceOp::sum, {.deadline = 5s});
    EXPECT_TRUE(same(data.read(), array_of<float>({static_cast<float>(world().size)})));
  });
}

TEST_P(Failures, AMissingRankIsNamedByTheDeadline) {
  RankBarrier failed(world().size);
  const auto store = make_memory_store();
  on_fresh_ranks(
      world(),
      [&](ProcessGroup& group) {
        const Buffer data(group, array_of<float>({1}));
        if (group.rank() != last()) {
          const auto start = Clock::now();
          const Error error = expect_error({Errc::timeout, Errc::peer_lost}, {"all_reduce"}, [&] {
            group.all_reduce(data, ReduceOp::sum, {.deadline = 200ms});
          });
          expect_within(start, 200ms + grace);
          EXPECT_TRUE(names_rank(error.what(), last())) << error.what();
          EXPECT_EQ(error.where().rank, last());
          expect_broken(group, error.message());
        }
        failed.wait();
        // The missing rank gets the error too.
        if (group.rank() == last())
          expect_error({Errc::aborted, Errc::timeout, Errc::peer_lost}, {"deadline"},
                       [&] { group.all_reduce(data, ReduceOp::sum, {.deadline = 200ms}); });

        GroupOptions options = group_options(world(), group.rank(), store);
        options.name = "rebuilt";
        ProcessGroup rebuilt = ProcessGroup::create(options);
        expect_usable(rebuilt);
        rebuilt.barrier();
      },
      {.store = store});
}

TEST_P(Failures, AnAsynchronousCallEndsByItsOwnDeadline) {
  RankBarrier failed(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() != last()) {
      const auto start = Clock::now();
      Work work = group.barrier_async({.deadline = 200ms});
      const Error error =
          expect_error({Errc::timeout, Errc::peer_lost}, {"barrier"}, [&] { work.wait(); });
      expect_within(start, 200ms + grace);
      EXPECT_TRUE(names_rank(error.what(), last())) << error.what();
    }
    failed.wait();
  });
}

TEST_P(Failures, TheTimeoutOfTheGroupHoldsForCallsWithoutADeadline) {
  // The making of the group has the same limit.
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(patience() * 300ms);
  RankBarrier failed(world().size);
  on_fresh_ranks(
      world(),
      [&](ProcessGroup& group) {
        // All ranks have joined: the timeout is that of the call, not of making the group.
        failed.wait();
        if (group.rank() != last()) {
          const auto start = Clock::now();
          expect_error({Errc::timeout, Errc::peer_lost}, {"barrier"}, [&] { group.barrier(); });
          expect_within(start, timeout + grace);
        }
        failed.wait();
      },
      {.timeout = timeout});
}

TEST_P(Failures, AnExpiredDeadlineEndsACallThatWouldHaveToWait) {
  RankBarrier failed(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      const auto start = Clock::now();
      expect_error({Errc::timeout, Errc::peer_lost}, {"barrier"},
                   [&] { group.barrier({.deadline = -1s}); });
      expect_within(start, grace);
    }
    failed.wait();
  });
}

TEST_P(Failures, AMessageThatIsNeverSentEndsByTheDeadline) {
  RankBarrier failed(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      const Buffer data(group, DType::f32, {4});
      const auto start = Clock::now();
      const Error error = expect_error({Errc::timeout, Errc::peer_lost}, {"recv"},
                                       [&] { group.recv(data, last(), 3, {.deadline = 200ms}); });
      expect_within(start, 200ms + grace);
      EXPECT_TRUE(names_rank(error.what(), last())) << error.what();
      expect_broken(group, error.message());
    }
    failed.wait();
    if (group.rank() != 0) expect_error(Errc::aborted, {"recv"}, [&] { group.barrier(); });
  });
}

TEST_P(Failures, ARankWhoseGroupIsGoneIsLostAtOnce) {
  RankBarrier gone(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == last()) {
      { const ProcessGroup destroyed = std::move(group); }
      gone.wait();
      return;
    }
    gone.wait();
    const auto start = Clock::now();
    const Error error =
        expect_error({Errc::peer_lost, Errc::aborted}, {}, [&] { group.barrier(); });
    EXPECT_TRUE(names_rank(error.what(), last())) << error.what();
    expect_within(start, at_once);
    expect_broken(group, "rank");
  });
}

TEST_P(Failures, ARankThatLeavesEndsTheCallsThatWaitForIt) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == last()) {
      std::this_thread::sleep_for(20ms);
      const ProcessGroup destroyed = std::move(group);
      return;
    }
    const auto start = Clock::now();
    const Error error =
        expect_error({Errc::peer_lost, Errc::aborted}, {}, [&] { group.barrier(); });
    EXPECT_TRUE(names_rank(error.what(), last())) << error.what();
    expect_within(start, 20ms + grace);
  });
}

TEST_P(Failures, LeavingAfterTheLastCallDisturbsNoRank) {
  for (int i = 0; i < 10; ++i)
    on_fresh_ranks(world(), [&](ProcessGroup& group) {
      const Buffer data(group, array_of<float>({1}));
      group.all_reduce(data);
      const ProcessGroup destroyed = std::move(group);
      EXPECT_TRUE(same(data.read(), array_of<float>({static_cast<float>(world().size)})));
    });
}

TEST_P(Failures, AbortEndsPendingCallsOnAllRanksWithItsText) {
  RankBarrier issued(world().size);  // An async call after the abort would throw when it is made.
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    const Buffer data(group, DType::f32, {4});
    const std::string why = "the operator pressed the button";
    if (group.rank() == last()) {
      // Its own call is pending, too.
      std::thread button([&] {
        issued.wait();
        std::this_thread::sleep_for(50ms);
        group.abort(why);
      });
      expect_error(Errc::aborted, {why}, [&] { group.recv(data, 0, 1); });
      button.join();
    } else if (group.rank() == 0) {
      issued.wait();
      expect_error(Errc::aborted, {why}, [&] { group.barrier(); });
    } else {
      Work work = group.barrier_async();
      Work more = group.all_reduce_async(data);
      issued.wait();
      expect_error(Errc::aborted, {why}, [&] { more.wait(); });
      expect_error(Errc::aborted, {why}, [&] { work.wait(); });
    }
    expect_broken(group, why);
  });
}

TEST_P(Failures, TheFirstCauseWinsOnAllRanks) {
  RankBarrier aborted(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == 0) group.abort("the first cause");
    aborted.wait();
    group.abort("a later cause");
    expect_broken(group, "the first cause");
  });
}

TEST_P(Failures, DifferentGroupsFailApart) {
  const auto store = make_memory_store();
  on_fresh_ranks(world(),
                 [&](ProcessGroup& group) {
                   GroupOptions options = group_options(world(), group.rank(), store);
                   options.name = "other";
                   ProcessGroup other = ProcessGroup::create(options);
                   expect_usable(other);
                   group.abort("only this group");
                   expect_broken(group, "only this group");
                   expect_usable(other);
                   other.barrier();
                 },
                 {.store = store});
}

// A rank that never comes is detected when the group is made.
TEST_P(Failures, MakingAGroupEndsByItsTimeoutWhenARankIsMissing) {
  const auto store = make_memory_store();
  on_threads(last(), [&](int rank) {
    GroupOptions options = group_options(world(), rank, store);
    options.name = "incomplete";
    options.timeout = 200ms;
    const auto start = Clock::now();
    const Error error = expect_error({Errc::timeout, Errc::peer_lost, Errc::aborted},
                                     {"incomplete"}, [&] { (void)ProcessGroup::create(options); });
    EXPECT_TRUE(names_rank(error.what(), last())) << error.what();
    expect_within(start, 200ms + grace);
  });
}

class FailuresOfOne : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FailuresOfOne, testing::ValuesIn(worlds({1})), CaseName());

TEST_P(FailuresOfOne, AnAbortedGroupSaysSo) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    expect_usable(group);
    group.abort("enough");
    expect_broken(group, "enough");
  });
}

}  // namespace
}  // namespace tutti::test
