#include <atomic>
#include <stdexcept>
#include <thread>

#include "conformance/cells.hpp"

// Calls in flight: Work, continuations, several groups and threads at once.

namespace tutti::test {
namespace {

class Async : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Async, testing::ValuesIn(worlds()), CaseName());

TEST_P(Async, ManyCallsInFlightMayBeWaitedForInAnyOrder) {
  on_ranks(world(), [](ProcessGroup& group) {
    constexpr int calls = 50;
    std::vector<Buffer> data;
    std::vector<Work> works;
    for (int i = 0; i < calls; ++i) {
      data.emplace_back(group, number(i + group.rank()));
      works.push_back(group.all_reduce_async(data.back()));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    const int n = group.size();
    for (int i = 0; i < calls; ++i)
      EXPECT_TRUE(same(data[index(i)].read(), number(i * n + n * (n - 1) / 2))) << "call " << i;
  });
}

// Each call uses the result of the previous one: they take effect in order.
TEST_P(Async, CallsOfOneGroupRunInTheOrderOfIssue) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const Buffer data(group, number(1));
    const Buffer all(group, DType::i32, {n});
    Work first = group.all_reduce_async(data);
    Work second = group.all_reduce_async(data);
    Work third = group.all_gather_async(data, all);
    group.broadcast(data, 0);  // A blocking call queues after them.
    third.wait();
    second.wait();
    first.wait();
    EXPECT_TRUE(same(data.read(), number(n * n)));
    EXPECT_TRUE(same(all.read(), concat(std::vector(index(n), number(n * n)))));
  });
}

TEST_P(Async, TheDestructorOfAWorkWaits) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    {
      if (group.rank() == 0) std::this_thread::sleep_for(3ms);
      const Work work = group.all_reduce_async(data);
    }
    EXPECT_TRUE(same(data.read(), number(group.size())));
  });
}

TEST_P(Async, BlockStreamOnHostMemoryWaits) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Work work = group.all_reduce_async(data);
    work.block_stream({});
    if (group.memory().device().type == DeviceType::cpu) {
      EXPECT_TRUE(work.done());
      EXPECT_TRUE(same(data.read(), number(group.size())));
    }
    work.wait();
  });
}

TEST_P(Async, ThenRunsAfterTheCallAndBeforeItsOwnEnd) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    std::vector<int> order;
    std::int32_t seen = 0;
    Work work = group.all_reduce_async(data)
                    .then([&] {
                      seen = data.read().get<std::int32_t>(0);
                      order.push_back(1);
                    })
                    .then([&] { order.push_back(2); });
    work.wait();
    EXPECT_EQ(seen, group.size());
    EXPECT_EQ(order, (std::vector{1, 2}));
  });
}

// A typical hook after a reduction: casts back, or passes the result to the next call.
TEST_P(Async, ThenMayIssueTheNextCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Work next;
    Work first = group.all_reduce_async(data).then([&] { next = group.all_reduce_async(data); });
    first.wait();
    next.wait();
    EXPECT_TRUE(same(data.read(), number(group.size() * group.size())));
  });
}

// On host memory it would wait for its own thread.
TEST_P(Async, ABlockingCallInsideThenIsRefused) {
  on_ranks(world(), [](ProcessGroup& group) {
    if (group.memory().device().type != DeviceType::cpu) return;
    const Buffer data(group, number(1));
    const Buffer other(group, number(1));
    Work work = group.all_reduce_async(data).then(
        [&] { expect_error(Errc::invalid_argument, {"then"}, [&] { group.all_reduce(other); }); });
    work.wait();
    EXPECT_TRUE(same(other.read(), number(1)));
    expect_usable(group);
  });
}

TEST_P(Async, ThenCarriesWhatItsFunctionThrew) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    bool ran = false;
    Work work = group.all_reduce_async(data)
                    .then([] { throw std::out_of_range("from the continuation"); })
                    .then([&] { ran = true; });
    try {
      work.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::out_of_range& error) {
      EXPECT_STREQ(error.what(), "from the continuation");
    }
    EXPECT_FALSE(ran);
    EXPECT_TRUE(same(data.read(), number(group.size())));
    expect_usable(group);
  });
}

TEST_P(Async, AllWaitsForEveryOne) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::vector<Buffer> data;
    std::vector<Work> works(1);  // Including a finished one.
    for (int i = 0; i < 5; ++i) {
      data.emplace_back(group, number(i));
      works.push_back(group.all_reduce_async(data.back()));
    }
    bool ran = false;
    Work all = Work::all(works).then([&] { ran = true; });
    all.wait();
    EXPECT_TRUE(ran);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(same(data[index(i)].read(), number(i * group.size())));
  });
}

TEST_P(Async, PendingWorksKeepTheirGroupAlive) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const Buffer data(group, number(1));
    Work work = group.all_reduce_async(data);
    { const ProcessGroup gone = std::move(group); }
    work.wait();
    EXPECT_TRUE(same(data.read(), number(size)));
  });
}

class AsyncOfSeveral : public Async {};
INSTANTIATE_TEST_SUITE_P(Worlds, AsyncOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(AsyncOfSeveral, WaitForOnlyObserves) {
  const int size = world().size;
  RankBarrier looked(size);
  on_ranks(world(), [&](ProcessGroup& group) {
    const Buffer data(group, number(1));
    if (group.rank() == size - 1) {
      looked.wait();
      group.all_reduce(data);
    } else {
      Work work = group.all_reduce_async(data);
      EXPECT_FALSE(work.wait_for(1ms));
      EXPECT_FALSE(work.wait_until(Deadline::after(1ms)));
      EXPECT_FALSE(work.error().has_value());
      looked.wait();
      EXPECT_TRUE(work.wait_for(group_timeout));
      EXPECT_TRUE(work.done());
      work.wait();
      work.wait();  // A second time, when finished.
    }
    EXPECT_TRUE(same(data.read(), number(size)));
  });
}

TEST_P(AsyncOfSeveral, GroupsInOppositeOrderDoNotDeadlock) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto other = group.split(0);
    ASSERT_TRUE(other.has_value());
    for (int i = 0; i < 5; ++i) {
      const Buffer a(group, number(1));
      const Buffer b(*other, number(10));
      Work first;
      Work second;
      if (group.rank() % 2 == 0) {
        first = group.all_reduce_async(a);
        second = other->all_reduce_async(b);
        first.wait();
        second.wait();
      } else {
        second = other->all_reduce_async(b);
        first = group.all_reduce_async(a);
        second.wait();
        first.wait();
      }
      EXPECT_TRUE(same(a.read(), number(group.size())));
      EXPECT_TRUE(same(b.read(), number(10 * group.size())));
    }
  });
}

// One thread waits in a collective; the other exchanges messages that the last rank needs before it
// enters the collective.
TEST_P(AsyncOfSeveral, AGroupMayBeUsedFromTwoThreads) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const int last = group.size() - 1;
    const Buffer sum(group, number(1));
    const Buffer message(group, number(rank));
    if (rank == last) {
      for (int from = 0; from < last; ++from) {
        group.recv(message, from, 6);
        EXPECT_TRUE(same(message.read(), number(from)));
      }
      group.all_reduce(sum);
    } else {
      std::exception_ptr thrown;
      std::thread collective([&] {
        try {
          group.all_reduce(sum);
        } catch (...) {
          thrown = std::current_exception();
        }
      });
      std::this_thread::sleep_for(1ms);
      group.send(message, last, 6);
      collective.join();
      if (thrown) std::rethrow_exception(thrown);
    }
    EXPECT_TRUE(same(sum.read(), number(group.size())));
  });
}

// Calls of two threads are numbered in any order; if only one thread makes collectives, their order
// is the same on all ranks.
TEST_P(AsyncOfSeveral, PointToPointOfOneThreadAndCollectivesOfAnotherDoNotDisturbEachOther) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int next = (group.rank() + 1) % size;
    const int previous = (group.rank() + size - 1) % size;
    std::exception_ptr thrown;
    std::thread pairs([&] {
      try {
        for (int i = 0; i < 50; ++i) {
          const Buffer in(group, number(i));
          const Buffer out(group, DType::i32, {1});
          Work sent = group.send_async(in, next, 8);
          group.recv(out, previous, 8);
          sent.wait();
          EXPECT_TRUE(same(out.read(), number(i)));
        }
      } catch (...) {
        thrown = std::current_exception();
        group.abort("the other thread failed");
      }
    });
    try {
      for (int i = 0; i < 50; ++i) {
        const Buffer sum(group, number(i));
        group.all_reduce(sum);
        EXPECT_TRUE(same(sum.read(), number(i * size)));
      }
    } catch (...) {
      group.abort("the collectives failed");
      pairs.join();
      throw;
    }
    pairs.join();
    if (thrown) std::rethrow_exception(thrown);
  });
}

class AsyncErrors : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }

  /// A call that fails on every rank and leaves the group usable.
  static Work mismatched(ProcessGroup& group, const Buffer& data) {
    return group.rank() == 0 ? group.all_reduce_async(data) : group.broadcast_async(data, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, AsyncErrors, testing::ValuesIn(worlds_that_compare()), CaseName());

TEST_P(AsyncErrors, WaitThrowsWhatWentWrongAndTheGroupStaysUsable) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Work work = mismatched(group, data);
    expect_error(Errc::mismatch, {"all_reduce", "broadcast"}, [&] { work.wait(); });
    EXPECT_TRUE(work.done());
    work.wait();  // It has been collected.
    expect_usable(group);
  });
}

TEST_P(AsyncErrors, ErrorCollectsWhatWentWrong) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    {
      Work work = mismatched(group, data);
      EXPECT_TRUE(work.wait_for(group_timeout));
      const auto error = work.error();
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code(), Errc::mismatch);
    }
    expect_usable(group);
  });
}

TEST_P(AsyncErrors, AnUncollectedErrorIsThrownByTheNextCallAndBreaksTheGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    { const Work dropped = mismatched(group, data); }
    expect_error({Errc::mismatch, Errc::aborted}, {"broadcast"}, [&] { group.barrier(); });
    expect_error(Errc::aborted, {"broadcast"}, [&] { group.barrier(); });
  });
}

TEST_P(AsyncErrors, ThenIsSkippedAndTheErrorPassesThroughIt) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    std::atomic<bool> ran = false;
    Work work = mismatched(group, data).then([&] { ran = true; }).then([&] { ran = true; });
    expect_error(Errc::mismatch, {"all_reduce", "broadcast"}, [&] { work.wait(); });
    EXPECT_FALSE(ran);
    expect_usable(group);
  });
}

TEST_P(AsyncErrors, AllThrowsTheFirstErrorInTheOrderOfItsWorks) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    const Buffer more(group, number(1));
    const Buffer fine(group, number(1));
    std::vector<Work> works(3);
    works[2] = mismatched(group, data);
    works[0] = group.all_reduce_async(fine);
    works[1] = group.rank() == 0 ? group.all_reduce_async(more) : group.reduce_async(more, more, 0);
    Work all = Work::all(works);
    expect_error(Errc::mismatch, {"all_reduce", "reduce sum"}, [&] { all.wait(); });
    EXPECT_TRUE(same(fine.read(), number(group.size())));
    expect_usable(group);
  });
}

TEST_P(AsyncErrors, AWorkThatIsUnwoundAbortsItsGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    const auto start = std::chrono::steady_clock::now();
    if (group.rank() == 0) {
      try {
        const Work work = group.all_reduce_async(data);
        throw std::runtime_error("something else");
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "something else");
      }
      expect_error(Errc::aborted, {}, [&] { group.barrier(); });
    } else if (group.rank() == 1) {
      expect_error(Errc::aborted, {"unw"}, [&] { group.recv(data, 0); });  // Never sent.
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, group_timeout / 2);
  });
}

}  // namespace
}  // namespace tutti::test
