// Barriers through the store, and the group's timeout and sequence number.

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class MonitoredBarriers : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, MonitoredBarriers, testing::ValuesIn(worlds()), CaseName());

/// The error of a monitored barrier that has to fail.
Error error_of_barrier(ProcessGroup& group, const CallOptions& options) {
  try {
    group.monitored_barrier(options);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "rank " << group.rank() << " has passed";
  return {Errc::backend, ""};
}

TEST_P(MonitoredBarriers, NoRankLeavesBeforeAllHaveEntered) {
  std::atomic<int> entered = 0;
  on_ranks(world(), [&](ProcessGroup& group) {
    for (int round = 1; round <= 10; ++round) {
      entered.fetch_add(1);
      group.monitored_barrier(soon);
      EXPECT_GE(entered.load(), round * world().size) << "in round " << round;
    }
    expect_usable(group);
  });
}

TEST_P(MonitoredBarriers, NameTheLateRanksOnAllAndBreakNothing) {
  if (world().size == 1) GTEST_SKIP() << "no rank is late";
  RankBarrier ended(world().size);
  PerRank<std::string> texts(world().size);
  on_ranks(world(), [&](ProcessGroup& group) {
    for (int round = 0; round < 2; ++round) {
      const bool late = group.rank() == last();
      if (late) ended.wait();  // Until all others have given up.
      const Error error = error_of_barrier(group, {.timeout = late ? 5s : 50ms});
      if (!late) ended.wait();
      EXPECT_EQ(error.code(), Errc::timeout) << error.what();
      EXPECT_EQ(error.where().missing, std::vector{last()}) << error.what();
      EXPECT_EQ(error.where().rank, last());
      EXPECT_EQ(error.where().operation, "monitored_barrier");
      texts[group.rank()] = error.what();
      group.monitored_barrier(soon);  // And later ones pass.
      for (const auto& text : texts.all()) EXPECT_EQ(text, error.what());
      std::string entered = "entered:";
      for (int r = 0; r < last(); ++r) entered += " " + std::to_string(r);
      EXPECT_NE(texts[0].find(entered + "; missing: " + std::to_string(last())), std::string::npos)
          << texts[0];
      expect_usable(group);
      group.monitored_barrier(soon);
    }
  });
}

TEST_P(MonitoredBarriers, RanksWithALongerDeadlineEndWithTheFirst) {
  if (world().size < 3) GTEST_SKIP() << "takes a rank that waits, one that gives up and one late";
  RankBarrier ended(world().size);
  on_ranks(world(), [&](ProcessGroup& group) {
    const bool late = group.rank() == last();
    if (late) ended.wait();
    const auto start = std::chrono::steady_clock::now();
    const Error error = error_of_barrier(group, {.timeout = group.rank() == 0 ? 50ms : 14s});
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    if (!late) ended.wait();
    EXPECT_EQ(error.where().missing, std::vector{last()}) << error.what();
    expect_usable(group);
  });
}

// Deadlines of about the time that all ranks take: some barriers pass, others fail, on all alike.
TEST_P(MonitoredBarriers, PassOnAllRanksOrOnNone) {
  constexpr int rounds = 30;
  RankBarrier together(world().size);
  PerRank<std::vector<bool>> results(world().size);
  on_ranks(world(), [&](ProcessGroup& group) {
    for (int round = 0; round < rounds; ++round) {
      together.wait();
      bool passed = true;
      try {
        group.monitored_barrier({.timeout = std::chrono::microseconds(20 * round + 1)});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::timeout) << error.what();
        passed = false;
      }
      results[group.rank()].push_back(passed);
    }
    group.monitored_barrier(soon);
  });
  for (int r = 1; r < world().size; ++r) EXPECT_EQ(results[r], results[0]) << "rank " << r;
}

TEST_P(MonitoredBarriers, RefuseANegativeTimeoutAndACoalesce) {
  on_ranks(world(), [](ProcessGroup& group) {
    expect_error(Errc::invalid_argument, {"timeout is -1 ns"},
                 [&] { group.monitored_barrier({.timeout = std::chrono::nanoseconds(-1)}); });
    {
      Coalesce together(group);
      expect_error(Errc::invalid_argument, {"monitored_barrier", "Coalesce"},
                   [&] { group.monitored_barrier(soon); });
    }
    group.monitored_barrier(soon);
    expect_usable(group);
  });
}

TEST_P(MonitoredBarriers, EndSoonWhenTheGroupHasFailed) {
  if (world().size == 1) GTEST_SKIP() << "waits for no rank";
  RankBarrier aborted(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == last()) {
      group.abort("the test");
      aborted.wait();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(group.monitored_barrier({.timeout = 14s}), Error);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    aborted.wait();
  });
}

TEST_P(MonitoredBarriers, TheTimeoutOfAGroupCanBeChanged) {
  if (world().size == 1) GTEST_SKIP() << "waits for no rank";
  RankBarrier ended(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    EXPECT_EQ(group.timeout(), group_timeout);
    expect_error(Errc::invalid_argument, {"timeout is 0 ns", "positive"},
                 [&] { group.set_timeout(0s); });
    group.set_timeout(10s);
    const ProcessGroup other = group.share();
    EXPECT_EQ(other.timeout(), 10s);
    const auto part = group.split(0);
    EXPECT_EQ(part->timeout(), 10s);
    group.barrier();
    if (group.rank() != last()) {
      group.set_timeout(50ms);
      expect_error({Errc::timeout, Errc::peer_lost, Errc::aborted}, {}, [&] { group.barrier(); });
    }
    ended.wait();
  });
}

TEST_P(MonitoredBarriers, TheSequenceNumberCountsCollectives) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    EXPECT_EQ(group.sequence_number(), 0U);
    const Buffer data(group, number(1));
    group.all_reduce(data);
    group.all_reduce_async(data).wait();
    EXPECT_EQ(group.sequence_number(), 2U);
    Work sent = group.send_async(data, group.rank(), 1, soon);
    (void)group.recv(data, group.rank(), 1, soon);
    sent.wait();
    group.monitored_barrier(soon);
    EXPECT_EQ(group.sequence_number(), 2U);
    group.barrier();
    EXPECT_EQ(group.sequence_number(), 3U);
    EXPECT_EQ(group.trace().empty(), false);
  });
}

}  // namespace
}  // namespace tutti::test
