#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

// Work::on_done() and Work::detach(): a callback runs once, whatever ends the call, on the group's
// worker.

namespace tutti::test {
namespace {

/// The arguments of a rank's callbacks.
class Heard {
 public:
  std::function<void(const Error*)> callback() {
    return [this](const Error* error) {
      const std::lock_guard lock(mutex_);
      ends_.push_back(error == nullptr ? std::optional<Errc>() : error->code());
      threads_.insert(std::this_thread::get_id());
    };
  }
  std::vector<std::optional<Errc>> ends() const {
    const std::lock_guard lock(mutex_);
    return ends_;
  }
  std::set<std::thread::id> threads() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }
  /// Deadline of a call without a waiting thread.
  bool await(std::size_t count) const {
    const Deadline limit = 20s;
    while (ends().size() < count && !limit.expired()) std::this_thread::sleep_for(1ms);
    return ends().size() >= count;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Errc>> ends_;
  std::set<std::thread::id> threads_;
};

using Ends = std::vector<std::optional<Errc>>;
const Ends success{std::nullopt};

bool await_expired(const std::weak_ptr<Buffer>& watch) {
  const Deadline limit = 20s;
  while (!watch.expired() && !limit.expired()) std::this_thread::sleep_for(1ms);
  return watch.expired();
}

class Callbacks : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Callbacks, testing::ValuesIn(worlds()), CaseName());

TEST_P(Callbacks, OnDoneRunsOnceAfterSuccessAndBeforeTheEndOfItsWork) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Heard heard;
    Work work = group.all_reduce_async(data);
    work.on_done(heard.callback());
    work.wait();
    EXPECT_EQ(heard.ends(), success);
    work.on_done(heard.callback());  // It is finished now.
    EXPECT_EQ(heard.ends().size(), 2U);
    EXPECT_EQ(heard.threads().count(std::this_thread::get_id()), 1U);
  });
}

TEST_P(Callbacks, RunInTheOrderOfTheirCalls) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    std::vector<int> order;
    Work work = group.all_reduce_async(data);
    work.on_done([&](const Error*) { order.push_back(0); });
    work.on_done([&](const Error*) { order.push_back(1); });
    work = std::move(work).then([&] { order.push_back(2); });
    work.on_done([&](const Error*) { order.push_back(3); });
    work.wait();
    EXPECT_EQ(order, (std::vector{0, 1, 2, 3}));
  });
}

// A continuation makes the input of a call that was issued behind it.
TEST_P(Callbacks, ThenRunsBeforeCollectivesThatAreIssuedLater) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    for (int round = 0; round < 100; ++round) {
      const Buffer first(group, number(group.rank() + round));
      const Buffer second(group, number(-1));
      Work works[2];
      works[0] = group.all_reduce_async(first).then(
          [&] { second.write(number(first.read().get<std::int32_t>(0) + 1)); });
      works[1] = group.all_reduce_async(second);
      Work::all(works).wait();
      ASSERT_TRUE(same(second.read(), number(n * (n * round + n * (n - 1) / 2 + 1))))
          << "round " << round;
    }
  });
}

// Collectives end on the worker, messages on a thread of a peer or of a transport. Their callbacks
// all run on one thread, none of those.
TEST_P(Callbacks, RunOnOneThreadOfTheGroupWhichIsNotTheCallers) {
  PerRank<std::thread::id> callers(world().size);
  PerRank<std::thread::id> workers(world().size);
  on_ranks(world(), [&](ProcessGroup& group) {
    Heard heard;
    const Buffer data(group, number(1));
    const Buffer in(group, number(2));
    const Buffer out(group, number(0));
    const int size = group.size();
    Work sum = group.all_reduce_async(data);
    Work sent = group.send_async(in, (group.rank() + 1) % size, 4);
    Work received = group.recv_async(out, (group.rank() + size - 1) % size, 4);
    for (Work* work : {&sum, &sent, &received}) work->on_done(heard.callback());
    for (Work* work : {&sum, &sent, &received}) work->wait();
    EXPECT_EQ(heard.ends().size(), 3U);
    ASSERT_EQ(heard.threads().size(), 1U);
    callers[group.rank()] = std::this_thread::get_id();
    workers[group.rank()] = *heard.threads().begin();
  });
  std::set<std::thread::id> all;
  for (int rank = 0; rank < world().size; ++rank) {
    all.insert(callers[rank]);
    all.insert(workers[rank]);
  }
  EXPECT_EQ(all.size(), 2 * static_cast<std::size_t>(world().size));
}

TEST_P(Callbacks, MayMakeTheNextCallButNotABlockingOne) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    const Buffer other(group, number(1));
    Work next;
    Work work = group.all_reduce_async(data);
    std::atomic<int> calls = 0;
    work.on_done([&](const Error*) {
      // A second call of this would wait for the Work of the first one, on the worker, for ever.
      if (++calls == 1) next = group.all_reduce_async(data);
    });
    work.wait();
    EXPECT_EQ(calls, 1);
    next.wait();
    EXPECT_TRUE(same(data.read(), number(group.size() * group.size())));
    Work last = group.all_reduce_async(data);
    last.on_done([&](const Error*) {
      expect_error(Errc::invalid_argument, {"on_done()", "async form"},
                   [&] { group.all_reduce(other); });
    });
    last.wait();
    expect_usable(group);
  });
}

TEST_P(Callbacks, WhatOneThrowsBreaksNothing) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Work work = group.all_reduce_async(data);
    work.on_done([](const Error*) { throw std::runtime_error("from a callback"); });
    work.wait();
    expect_usable(group);
  });
}

TEST_P(Callbacks, OnDoneOfAllRunsOnce) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::vector<Buffer> data;
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) {
      data.emplace_back(group, number(i));
      works.push_back(group.all_reduce_async(data.back()));
    }
    Heard heard;
    Work all = Work::all(works);
    all.on_done(heard.callback());
    all.wait();
    EXPECT_EQ(heard.ends(), success);
  });
}

TEST_P(Callbacks, OfACallInsideACoalesceAreRefusedAndNeverRun) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    const Buffer more(group, number(1));
    Heard heard;
    Coalesce together(group);
    Work one = group.all_reduce_async(data);
    expect_error(Errc::unsupported, {"on_done()", "Coalesce", "launch()"},
                 [&] { one.on_done(heard.callback()); });
    expect_error(Errc::unsupported, {"detach()", "Coalesce", "launch()"},
                 [&] { std::move(one).detach(); });
    (void)group.all_reduce_async(more);
    Work all = together.launch();
    all.on_done(heard.callback());  // Of the launch it works.
    all.wait();
    one.wait();
    EXPECT_EQ(heard.ends(), success);
    EXPECT_TRUE(same(data.read(), number(group.size())));
  });
}

TEST_P(Callbacks, DetachKeepsItsBufferUntilTheEnd) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto data = std::make_shared<Buffer>(group, number(1));
    const std::weak_ptr<Buffer> watch = data;
    Work work = group.all_reduce_async(*data);
    std::atomic<std::int32_t> seen = 0;
    work.on_done(
        [&seen, raw = data.get()](const Error*) { seen = raw->read().get<std::int32_t>(0); });
    std::move(work).detach(std::move(data));
    EXPECT_TRUE(await_expired(watch));
    EXPECT_EQ(seen.load(), group.size());
    expect_usable(group);
  });
}

TEST_P(Callbacks, ADetachedCallKeepsItsGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    auto data = std::make_shared<Buffer>(group, number(1));
    const std::weak_ptr<Buffer> watch = data;
    Heard heard;
    Work work = group.all_reduce_async(*data);
    work.on_done(heard.callback());
    std::move(work).detach(std::move(data));
    { const ProcessGroup gone = std::move(group); }
    EXPECT_TRUE(heard.await(1));
    EXPECT_EQ(heard.ends(), success);
    EXPECT_TRUE(await_expired(watch));
  });
}

class CallbacksOfSeveral : public Callbacks {};
INSTANTIATE_TEST_SUITE_P(Worlds, CallbacksOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(CallbacksOfSeveral, OnDoneGetsARefusalOfAPeer) {
  if (world().backend != "local" && world().backend != "shm" && !world().checked)
    GTEST_SKIP() << "a rank may have done its part before the refusal";
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    if (group.rank() == 0) {
      expect_error(Errc::invalid_argument, {}, [&] { (void)group.broadcast_async(data, 99); });
      return;
    }
    Heard heard;
    group.broadcast_async(data, 0).on_done(heard.callback());
    EXPECT_EQ(heard.ends(), Ends{Errc::mismatch});
  });
}

TEST_P(CallbacksOfSeveral, OnDoneGetsAnAbortOnTheWorker) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Heard heard;
    if (group.rank() != 0) return;
    Work work = group.recv_async(data, 1);  // Never sent.
    work.on_done(heard.callback());
    group.abort("the test");
    EXPECT_TRUE(heard.await(1));
    EXPECT_EQ(heard.threads().count(std::this_thread::get_id()), 0U);
    EXPECT_EQ(heard.ends(), Ends{Errc::aborted});
  });
}

// No thread waits for the call, so the library enforces its deadline.
TEST_P(CallbacksOfSeveral, OnDoneGetsTheTimeoutOfADetachedMessage) {
  RankBarrier failed(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      Heard heard;
      auto data = std::make_shared<Buffer>(group, number(1));
      const std::weak_ptr<Buffer> watch = data;
      Work work = group.recv_async(*data, 1, 0, {.deadline = 100ms});
      work.on_done(heard.callback());
      std::move(work).detach(std::move(data));
      EXPECT_TRUE(heard.await(1));
      EXPECT_TRUE(heard.ends() == Ends{Errc::timeout} || heard.ends() == Ends{Errc::peer_lost});
      EXPECT_TRUE(await_expired(watch));
    }
    failed.wait();
  });
}

TEST_P(CallbacksOfSeveral, OnDoneGetsTheTimeoutOfACollective) {
  RankBarrier ready(world().size);
  RankBarrier failed(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    ready.wait();
    if (group.rank() != last()) {
      Heard heard;
      Work work = group.barrier_async({.deadline = 100ms});
      work.on_done(heard.callback());
      // Aborted: on a busy machine the worker of this rank entered after another rank's deadline.
      expect_error({Errc::timeout, Errc::peer_lost, Errc::aborted}, {"barrier"},
                   [&] { work.wait(); });
      ASSERT_EQ(heard.ends().size(), 1U);
      EXPECT_TRUE(heard.ends()[0].has_value());
    }
    failed.wait();
  });
}

TEST_P(CallbacksOfSeveral, OnDoneGetsTheLossOfAPeer) {
  RankBarrier called(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == last()) {
      called.wait();
      const ProcessGroup gone = std::move(group);
      return;
    }
    const Buffer data(group, number(1));
    Heard heard;
    Work work = group.recv_async(data, last());
    work.on_done(heard.callback());
    called.wait();
    EXPECT_TRUE(work.wait_for(group_timeout));
    ASSERT_EQ(heard.ends().size(), 1U);
    EXPECT_TRUE(heard.ends()[0] == Errc::peer_lost || heard.ends()[0] == Errc::aborted);
  });
}

TEST_P(CallbacksOfSeveral, AnErrorOfADetachedCallBreaksTheGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    if (group.rank() != 0) return;
    auto kept = std::make_shared<Buffer>(group, number(1));
    const std::weak_ptr<Buffer> watch = kept;
    group.recv_async(*kept, 1, 0, {.deadline = 50ms}).detach(std::move(kept));
    EXPECT_TRUE(await_expired(watch));
    expect_error({Errc::timeout, Errc::peer_lost, Errc::aborted}, {"recv"},
                 [&] { group.barrier(); });
  });
}

class CallbackErrors : public Callbacks {
 protected:
  /// A call that fails on every rank and leaves the group usable.
  static Work mismatched(ProcessGroup& group, const Buffer& data) {
    return group.rank() == 0 ? group.all_reduce_async(data) : group.broadcast_async(data, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CallbackErrors, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

TEST_P(CallbackErrors, OnDoneCollectsAMismatchAndTheGroupStaysUsable) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Heard heard;
    {
      Work dropped = mismatched(group, data);
      dropped.on_done(heard.callback());
    }
    EXPECT_EQ(heard.ends(), Ends{Errc::mismatch});
    expect_usable(group);
  });
}

TEST_P(CallbackErrors, OnDoneRunsWhereThenIsSkipped) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Heard heard;
    std::atomic<bool> ran = false;
    Work work = mismatched(group, data).then([&] { ran = true; });
    work.on_done(heard.callback());
    expect_error(Errc::mismatch, {"all_reduce", "broadcast"}, [&] { work.wait(); });
    EXPECT_EQ(heard.ends(), Ends{Errc::mismatch});
    EXPECT_FALSE(ran);
    expect_usable(group);
  });
}

TEST_P(CallbackErrors, AMismatchOfADetachedCallBreaksTheGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    auto data = std::make_shared<Buffer>(group, number(1));
    const std::weak_ptr<Buffer> watch = data;
    Work work = mismatched(group, *data);
    std::move(work).detach(std::move(data));
    EXPECT_TRUE(await_expired(watch));
    expect_error({Errc::mismatch, Errc::aborted}, {"broadcast"}, [&] { group.barrier(); });
  });
}

}  // namespace
}  // namespace tutti::test
