#include <functional>
#include <thread>
#include <vector>

#include <tutti/gather.hpp>
#include <tutti/sync.hpp>

#include "conformance/cells.hpp"

// CallOptions::timeout together with CallOptions::deadline and the group's timeout.

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
using TimedCall = std::function<void(ProcessGroup& group, const CallOptions& options)>;

/// Time after its limit in which a call must have ended.
constexpr auto grace = 500ms;

class FailuresByTimeout : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }

  /// The last rank does not make the call. On the other ranks it has to end within `limit`,
  /// although the other limits allow 3 s.
  void expect_ended(const CallOptions& options, std::chrono::milliseconds limit,
                    const TimedCall& call) {
    RankBarrier barrier(world().size);
    on_fresh_ranks(world(),
                   [&](ProcessGroup& group) {
                     barrier.wait();
                     if (group.rank() != last()) {
                       const auto start = Clock::now();
                       expect_error({Errc::timeout, Errc::peer_lost, Errc::aborted}, {},
                                    [&] { call(group, options); });
                       const auto took = Clock::now() - start;
                       EXPECT_LT(took, limit + std::min(patience(), 4.0) * grace);
                     }
                     barrier.wait();
                   },
                   {.timeout = 3s});
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, FailuresByTimeout, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(FailuresByTimeout, ATimeoutAloneEndsACall) {
  expect_ended({.timeout = 100ms}, 100ms, [this](ProcessGroup& group, const CallOptions& options) {
    const Buffer data(group, DType::f32, {4});
    group.recv_async(data, last(), 3, options).wait();
  });
}

TEST_P(FailuresByTimeout, ATimeoutBeforeTheDeadlineEndsACall) {
  expect_ended({.deadline = Deadline::after(3s), .timeout = 100ms}, 100ms,
               [](ProcessGroup& group, const CallOptions& options) { group.barrier(options); });
}

TEST_P(FailuresByTimeout, ATimeoutEndsACallWithoutALimitOtherwise) {
  expect_ended(
      {.deadline = Deadline::none(), .timeout = 100ms}, 100ms,
      [](ProcessGroup& group, const CallOptions& options) { group.barrier_async(options).wait(); });
}

TEST_P(FailuresByTimeout, ADeadlineBeforeTheTimeoutEndsACall) {
  expect_ended({.timeout = 3s}, 100ms, [](ProcessGroup& group, const CallOptions& options) {
    auto both = options;
    both.deadline = 100ms;
    group.barrier(both);
  });
}

TEST_P(FailuresByTimeout, ATimeoutHoldsForGathersAndSums) {
  const CallOptions options{.deadline = Deadline::after(5s), .timeout = 100ms};
  expect_ended(options, 100ms, [](ProcessGroup& group, const CallOptions& limits) {
    const Buffer data(group, DType::f32, {4});
    (void)all_gather_rows(group, data, {}, limits);
  });
  expect_ended(options, 100ms, [](ProcessGroup& group, const CallOptions& limits) {
    (void)all_reduce_number(group, 1.0, ReduceOp::sum, limits);
  });
}

TEST_P(FailuresByTimeout, LimitsHoldForSubGroupsAndRegistrations) {
  expect_ended({.timeout = 100ms}, 100ms, [](ProcessGroup& group, const CallOptions& options) {
    (void)group.split(0, 0, options);
  });
  expect_ended({.deadline = Deadline::none(), .timeout = 100ms}, 100ms,
               [](ProcessGroup& group, const CallOptions& options) {
                 (void)group.subset(std::vector{0}, options);
               });
  expect_ended({.timeout = 3s}, 100ms, [](ProcessGroup& group, const CallOptions& options) {
    auto both = options;
    both.deadline = 100ms;
    const Buffer data(group, DType::f32, {4});
    (void)group.register_memory(data, both);
  });
}

TEST_P(FailuresByTimeout, ACallMayTakeLongerThanTheTimeoutOfItsGroup) {
  for (const CallOptions& options : {CallOptions{.timeout = 10s}, CallOptions{.deadline = 10s}}) {
    RankBarrier barrier(world().size);
    on_fresh_ranks(world(),
                   [&](ProcessGroup& group) {
                     barrier.wait();
                     if (group.rank() == last()) std::this_thread::sleep_for(1100ms);
                     group.barrier(options);
                   },
                   {.timeout = 800ms});
  }
}

// The same options serve any number of calls, each counted from its own beginning.
TEST_P(FailuresByTimeout, ATimeoutCountsAnewForEachCall) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const CallOptions options{.timeout = 2s};
    for (int i = 0; i < 3; ++i) {
      if (group.rank() == last()) std::this_thread::sleep_for(800ms);
      group.barrier(options);
    }
  });
}

// Ranks that made different calls wait for each other. Over gloo in normal mode the text of the
// timeout says so.
TEST(TimeoutOverGloo, NamesTheCallsOfAllRanks) {
  for (const World& world : worlds({3})) {
    if (!shares_fate(world.backend) || is_hier(world.backend) || world.checked) continue;
    on_fresh_ranks(world, [](ProcessGroup& group) {
      const CallOptions options{.timeout = 300ms};
      const Buffer data(group, DType::f32, {4});
      expect_error({Errc::timeout, Errc::aborted},
                   {"entered: ", "missing: ", " (", " #0 on group", "called: ",
                    "ranks may have made different calls, which TUTTI_CHECK=1 compares"},
                   [&] {
                     if (group.rank() == 1)
                       group.barrier(options);
                     else
                       group.all_reduce(data, ReduceOp::sum, options);
                   });
    });
  }
}

class RefusalOfTimeouts : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RefusalOfTimeouts, testing::ValuesIn(worlds()), CaseName());

TEST_P(RefusalOfTimeouts, ANegativeOneIsRefused) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const CallOptions options{.timeout = -1ns};
    const Buffer data(group, array_of<float>({1}));
    const auto expect_refused = [](const std::string& name, const std::function<void()>& call) {
      expect_error(Errc::invalid_argument, {name, "timeout is -1 ns", ">= 0"}, call);
    };
    expect_refused("all_reduce", [&] { group.all_reduce(data, ReduceOp::sum, options); });
    expect_refused("barrier", [&] { group.barrier(options); });
    expect_refused("barrier", [&] { group.barrier_async(options).wait(); });
    expect_refused("", [&] { (void)all_reduce_number(group, 1.0, ReduceOp::sum, options); });
    expect_refused("", [&] { (void)all_gather_rows(group, data, {}, options); });
    expect_refused("", [&] { (void)group.split(0, 0, options); });
    expect_refused("", [&] { (void)group.subset(std::vector{0}, options); });
    expect_refused("", [&] { (void)group.register_memory(data, options); });
    expect_refused("", [&] { (void)all_gather_bytes(group, "text", options); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
