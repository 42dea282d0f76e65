#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"
#include "support/fake_ranks.hpp"
#include "support/sanitizers.hpp"

// The rules of streams, on the fake device: asynchronous, slow on request; memory read or freed too
// early is poisoned. Each rule is checked with a backend that keeps it and with one that breaks it,
// which the check must detect.

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Duration of a slow kernel, long enough to tell a host that waits for it from one that does not.
constexpr auto slow = 100ms;

constexpr std::int64_t count = 1000;

/// The arguments of a rank of these tests.
struct RankContext : FakeRank {
  TensorView make() const {
    return {device.allocate(count * sizeof(float), {}), DType::f32, {count}, device.device()};
  }
};

/// Runs `body` on `world.size` ranks whose arrays are on a fake device.
void on_fake_ranks(const World& world, FakeFlaws flaws,
                   const std::function<void(RankContext)>& body) {
  run_fake_ranks(world, flaws, [&](const FakeRank& rank) { body({rank}); });
}

/// True if every element of `data`, read in order on `stream`, is `want`.
bool holds(const RankContext& at, const TensorView& data, float want, FakeStream& stream) {
  std::vector<float> host(count);
  at.device.copy(host.data(), data.data, data.bytes(), stream.handle());
  return std::ranges::all_of(host, [&](float value) { return value == want; });
}

float sum_of(const RankContext& at) {
  return static_cast<float>(at.group.size() * (at.group.size() + 1) / 2);
}

/// Checks one rule; true if it holds on this rank.
using Rule = std::function<bool(const RankContext& at)>;

void expect_rule(const World& world, const Rule& rule) {
  on_fake_ranks(world, {}, [&](const RankContext& at) { EXPECT_TRUE(rule(at)); });
}

/// The negative control: at least one rank must detect the flaw. Repeated, because on a busy
/// machine the host may be later than a slow kernel, and then the flaw has no effect.
void expect_noticed(const World& world, FakeFlaws flaws, const Rule& rule) {
  if (thread_sanitizer) GTEST_SKIP() << "the control is a data race on purpose";
  bool noticed = false;
  for (int attempt = 0; attempt < 5 && !noticed; ++attempt) {
    PerRank<char> held(world.size);
    on_fake_ranks(world, flaws, [&](const RankContext& at) { held[at.group.rank()] = rule(at); });
    noticed = std::ranges::any_of(held.all(), [](char h) { return h == 0; });
  }
  EXPECT_TRUE(noticed) << "the check does not notice a backend that breaks the rule";
}

bool sees_inputs_of_a_slow_kernel(const RankContext& at) {
  const TensorView in = at.make();
  const TensorView out = at.make();
  at.device.fill(in, static_cast<float>(at.group.rank() + 1), slow, at.compute.handle());
  at.group.all_reduce(in, out, ReduceOp::sum, {.stream = at.compute.handle()});
  return holds(at, out, sum_of(at), at.compute);
}

// A host that blocks is never quick; one that does not may be delayed by other causes.
bool does_not_block_the_host(const RankContext& at) {
  bool right = true;
  bool quick = false;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const TensorView data = at.make();
    at.device.fill(data, static_cast<float>(at.group.rank() + 1), slow, at.compute.handle());
    at.group.barrier_async().wait();  // All ranks have joined: the next calls do not wait for any.
    const auto start = Clock::now();
    at.group.all_reduce(data, ReduceOp::sum, {.stream = at.compute.handle()});
    quick = quick || Clock::now() - start < slow / 2;
    right = holds(at, data, sum_of(at), at.compute) && right;
  }
  return right && quick;
}

bool lets_another_stream_read_the_result(const RankContext& at) {
  const TensorView in = at.make();
  const TensorView out = at.make();
  const TensorView copy = at.make();
  at.device.fill(in, static_cast<float>(at.group.rank() + 1), slow, at.compute.handle());
  Work work = at.group.all_reduce_async(in, out, ReduceOp::sum, {.stream = at.compute.handle()});
  work.block_stream(at.other.handle());
  at.device.copy_kernel(copy, out, {}, at.other.handle());
  const bool right = holds(at, copy, sum_of(at), at.other);
  work.wait();
  return right;
}

// Rank 0 is slow, so the inputs of the other ranks are in use long after their verbs have returned.
bool lets_buffers_be_freed_in_stream_order(const RankContext& at) {
  const TensorView in = at.make();
  const TensorView out = at.make();
  at.device.fill(in, static_cast<float>(at.group.rank() + 1), at.group.rank() == 0 ? slow : 0ms,
                 at.compute.handle());
  if (at.group.rank() != 0) at.compute.synchronize();
  Work work = at.group.all_reduce_async(in, out, ReduceOp::sum, {.stream = at.compute.handle()});
  work.block_stream(at.other.handle());
  at.device.release(in.data, in.bytes(), at.other.handle());
  work.wait();
  return holds(at, out, sum_of(at), at.compute);
}

class Streams : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};

// `local` moves the bytes of the fake device, so it represents all backends.
std::vector<World> fake_worlds() {
  std::vector<World> all = worlds_of_several();
  std::erase_if(all, [](const World& world) { return world.backend != "local"; });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Worlds, Streams, testing::ValuesIn(fake_worlds()), CaseName());

TEST_P(Streams, InputsOfASlowKernelAreSeen) {
  expect_rule(world(), sees_inputs_of_a_slow_kernel);
}

TEST_P(Streams, ABackendThatIgnoresTheStreamOfTheCallIsNoticed) {
  expect_noticed(world(), {.ignores_call_stream = true}, sees_inputs_of_a_slow_kernel);
}

TEST_P(Streams, ASynchronousVerbDoesNotBlockTheHost) {
  expect_rule(world(), does_not_block_the_host);
}

TEST_P(Streams, ABackendThatBlocksTheHostIsNoticed) {
  expect_noticed(world(), {.blocks_the_host = true}, does_not_block_the_host);
}

TEST_P(Streams, OrderLetsAnotherStreamReadTheResult) {
  expect_rule(world(), lets_another_stream_read_the_result);
}

TEST_P(Streams, ABackendWhoseOrderDoesNothingIsNoticedByAReader) {
  expect_noticed(world(), {.block_stream_does_nothing = true}, lets_another_stream_read_the_result);
}

TEST_P(Streams, OrderLetsBuffersBeFreedInStreamOrder) {
  expect_rule(world(), lets_buffers_be_freed_in_stream_order);
}

TEST_P(Streams, ABackendWhoseOrderDoesNothingIsNoticedWhenBuffersAreFreed) {
  expect_noticed(world(), {.block_stream_does_nothing = true},
                 lets_buffers_be_freed_in_stream_order);
}

TEST_P(Streams, SynchronousVerbsFollowEachOtherOnOneStream) {
  expect_rule(world(), [](const RankContext& at) {
    const TensorView data = at.make();
    const Stream stream = at.compute.handle();
    at.device.fill(data, 1, slow, stream);
    at.group.all_reduce(data, ReduceOp::sum, {.stream = stream});
    at.group.all_reduce(data, ReduceOp::sum, {.stream = stream});
    at.group.broadcast(data, at.group.size() - 1, {.stream = stream});
    return holds(at, data, static_cast<float>(at.group.size() * at.group.size()), at.compute);
  });
}

TEST_P(Streams, TheDefaultStreamIsAStream) {
  expect_rule(world(), [](const RankContext& at) {
    const TensorView data = at.make();
    at.device.fill(data, 1, slow, {});
    at.group.all_reduce(data);
    return holds(at, data, static_cast<float>(at.group.size()), at.device.stream({}));
  });
}

TEST_P(Streams, WaitBlocksTheHostUntilTheResultIsThere) {
  expect_rule(world(), [](const RankContext& at) {
    const TensorView data = at.make();
    at.device.fill(data, 1, slow, at.compute.handle());
    Work work = at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.compute.handle()});
    const bool pending = !work.wait_for(slow / 10) && !work.done();
    work.wait();
    return pending && holds(at, data, static_cast<float>(at.group.size()), at.other);
  });
}

TEST_P(Streams, WaitEndsByTheDeadlineOfTheCall) {
  RankBarrier failed(world().size);
  on_fake_ranks(world(), {}, [&](const RankContext& at) {
    if (at.group.rank() == 0) {
      const TensorView data = at.make();
      at.device.fill(data, 1, {}, at.compute.handle());
      const auto start = Clock::now();
      expect_error({Errc::timeout, Errc::peer_lost}, {}, [&] {
        Work work = at.group.all_reduce_async(data, ReduceOp::sum,
                                              {.stream = at.compute.handle(), .deadline = 200ms});
        work.wait();
      });
      EXPECT_LT(Clock::now() - start, 2s);
      expect_error(Errc::aborted, {}, [&] {
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.compute.handle()});
      });
    }
    failed.wait();
  });
}

// A hook after a reduction, as for mixed precision: it runs on the communication stream, after its
// call and before the next.
TEST_P(Streams, ThenRunsInOrderOfTheCommunicationStream) {
  on_fake_ranks(world(), {}, [](const RankContext& at) {
    const TensorView data = at.make();
    at.device.fill(data, 1, slow, at.compute.handle());
    const CallOptions options{.stream = at.compute.handle()};
    auto* values = static_cast<float*>(data.data);
    const auto host = std::this_thread::get_id();
    auto hook = host;
    Work first = at.group.all_reduce_async(data, ReduceOp::sum, options).then([&] {
      hook = std::this_thread::get_id();
      for (std::int64_t i = 0; i < count; ++i) values[i] *= 2;
    });
    Work second = at.group.all_reduce_async(data, ReduceOp::sum, options);
    second.wait();
    EXPECT_TRUE(first.done());
    first.wait();
    EXPECT_NE(hook, host);
    const int size = at.group.size();
    EXPECT_TRUE(holds(at, data, static_cast<float>(2 * size * size), at.other));
  });
}

// A callback sees the result of its call, on a thread that is not the host's; an error reaches it.
TEST_P(Streams, OnDoneRunsOnceTheDeviceHasEndedTheCall) {
  on_fake_ranks(world(), {}, [](const RankContext& at) {
    const TensorView data = at.make();
    at.device.fill(data, 1, slow, at.compute.handle());
    const CallOptions options{.stream = at.compute.handle()};
    auto* values = static_cast<float*>(data.data);
    const auto host = std::this_thread::get_id();
    std::atomic<float> seen = 0;
    std::atomic<int> calls = 0;
    std::atomic<bool> elsewhere = false;
    Work work = at.group.all_reduce_async(data, ReduceOp::sum, options);
    work.on_done([&](const Error* error) {
      ++calls;
      seen = error == nullptr ? values[count - 1] : -1;
      elsewhere = std::this_thread::get_id() != host;
    });
    work.wait();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(seen, static_cast<float>(at.group.size()));
    EXPECT_TRUE(elsewhere);
    auto kept = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = kept;
    at.group.all_reduce_async(data, ReduceOp::sum, options).detach(std::move(kept));
    for (const Deadline limit = 20s; !watch.expired() && !limit.expired();)
      std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(watch.expired());
  });
}

TEST_P(Streams, ArraysOnTheHostAreRefused) {
  on_fake_ranks(world(), {}, [](const RankContext& at) {
    std::vector<float> host(4);
    expect_error(Errc::invalid_argument, {"cpu"}, [&] { at.group.all_reduce(host); });
  });
}

TEST_P(Streams, SubGroupsFollowTheRulesToo) {
  expect_rule(world(), [](const RankContext& at) {
    auto part = at.group.split(0, -at.group.rank());
    if (!part) return false;
    return sees_inputs_of_a_slow_kernel({*part, at.device, at.compute, at.other});
  });
}

TEST_P(Streams, ABadSubsetOfOneRankIsToldToTheOthers) {
  on_fake_ranks(world(), {}, [](const RankContext& at) {
    const int last = at.group.size() - 1;
    const bool bad = at.group.rank() == last;
    for (const int wrong : {-7, -8}) {
      const std::vector<int> list{bad ? wrong : 0};
      expect_error(bad ? Errc::invalid_argument : Errc::mismatch, {"subset", std::to_string(wrong)},
                   [&] { (void)at.group.subset(list); });
    }
    auto part = at.group.subset(std::vector{last});
    EXPECT_EQ(part.has_value(), bad);
  });
}

TEST_P(Streams, MessagesFollowTheRulesToo) {
  expect_rule(world(), [](const RankContext& at) {
    const TensorView data = at.make();
    const CallOptions options{.stream = at.compute.handle()};
    const int last = at.group.size() - 1;
    if (at.group.rank() == 0) {
      at.device.fill(data, 7, slow, at.compute.handle());
      at.group.send(data, last, 1, options);
    } else if (at.group.rank() == last) {
      at.group.recv(data, 0, 1, options);
    } else {
      return true;
    }
    return holds(at, data, 7, at.compute);
  });
}

// The collectives of a launch are compared whatever comes first in it.
TEST(StreamsChecked, ALaunchThatBeginsWithAMessageIsCompared) {
  on_fake_ranks({"fake", 3, true}, {}, [](const RankContext& at) {
    const int right = (at.group.rank() + 1) % at.group.size();
    const int left = (at.group.rank() + at.group.size() - 1) % at.group.size();
    const CallOptions options{.stream = at.compute.handle()};
    const TensorView out = at.make();
    const TensorView in = at.make();
    const TensorView data = at.make();
    at.device.fill(out, 7, 0ms, at.compute.handle());
    const auto launch = [&](ReduceOp op) {
      Coalesce together(at.group);
      (void)at.group.send_async(out, right, 1, options);
      (void)at.group.recv_async(in, left, 1, options);
      (void)at.group.all_reduce_async(data, op, options);
      return together.launch();
    };
    expect_error(Errc::mismatch, {"all_reduce", "sum", "max"},
                 [&] { (void)launch(at.group.rank() == 0 ? ReduceOp::sum : ReduceOp::max); });
    launch(ReduceOp::max).block_stream(at.compute.handle());  // The group stays usable.
    EXPECT_TRUE(holds(at, in, 7, at.compute));
  });
}

}  // namespace
}  // namespace tutti::test
