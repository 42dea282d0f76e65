#include <algorithm>
#include <thread>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

using State = TraceEntry::State;

/// The collectives among the entries; the trace has those of point-to-point as well.
Trace collectives_of(const Trace& trace) {
  Trace part;
  std::ranges::copy_if(trace, std::back_inserter(part),
                       [](const TraceEntry& e) { return !is_point_to_point(e.operation); });
  return part;
}
Trace pairs_of(const Trace& trace) {
  Trace part;
  std::ranges::copy_if(trace, std::back_inserter(part),
                       [](const TraceEntry& e) { return is_point_to_point(e.operation); });
  return part;
}

class Traces : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Traces, testing::ValuesIn(worlds()), CaseName());

class TracesOfSeveral : public Traces {};
INSTANTIATE_TEST_SUITE_P(Worlds, TracesOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(Traces, RemembersWhatWasCalled) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    EXPECT_TRUE(group.trace().empty());
    const int last = group.size() - 1;
    const auto before = std::chrono::steady_clock::now();
    const Buffer data(group, DType::f16, {100});
    group.all_reduce(data, ReduceOp::max, {.name = "a name longer than it keeps"});
    const Buffer all(group, DType::f16, {100, group.size()});
    group.broadcast(all, last);
    group.barrier();

    const Trace trace = group.trace();
    ASSERT_EQ(trace.size(), 3U);
    EXPECT_EQ(trace[0].operation, Operation::all_reduce);
    EXPECT_EQ(trace[0].dtype, DType::f16);
    EXPECT_EQ(trace[0].reduce, ReduceOp::Kind::max);
    EXPECT_EQ(trace[0].bytes, 200);
    EXPECT_EQ(trace[0].peer, -1);
    EXPECT_EQ(trace[0].ops, 1U);
    EXPECT_FALSE(trace[0].async);
    EXPECT_EQ(trace[0].name, "a name longer th");
    EXPECT_EQ(trace[1].operation, Operation::broadcast);
    EXPECT_EQ(trace[1].bytes, 200 * group.size());
    EXPECT_EQ(trace[1].peer, last);
    EXPECT_EQ(trace[1].name, "");
    EXPECT_EQ(trace[2].operation, Operation::barrier);
    for (std::size_t i = 0; i < trace.size(); ++i) {
      EXPECT_EQ(trace[i].seq, trace[0].seq + i);
      EXPECT_EQ(trace[i].state, State::done);
      EXPECT_GE(trace[i].started, before - 20ms);
      EXPECT_LE(trace[i].started, std::chrono::steady_clock::now() + 20ms);
    }
    EXPECT_NE(to_string(trace[0]).find("all_reduce"), std::string::npos) << to_string(trace[0]);
    EXPECT_NE(to_string(trace[0]).find("done"), std::string::npos) << to_string(trace[0]);
  });
}

TEST_P(Traces, KeepsTheLastSixtyFourOldestFirst) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    constexpr int calls = 150;
    const Buffer data(group, DType::u8, {calls + 1});
    for (int i = 1; i <= calls; ++i) group.all_reduce(data.rows(0, i), ReduceOp::bor);
    const Trace trace = group.trace();
    ASSERT_EQ(trace.size(), 64U);
    for (std::size_t i = 0; i < trace.size(); ++i) {
      EXPECT_EQ(trace[i].bytes, static_cast<std::int64_t>(calls - 63 + i));
      EXPECT_EQ(trace[i].seq, trace[0].seq + i);
    }
  });
}

TEST_P(TracesOfSeveral, PointToPointHasItsOwnSixtyFour) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const int peer = group.rank() ^ 1;
    if (peer < group.size()) {
      const Buffer data(group, DType::u8, {3});
      for (int i = 0; i < 70; ++i) {
        if (group.rank() < peer)
          group.send(data, peer, 4);
        else
          group.recv(data, peer, 4);
      }
    }
    group.barrier();
    const Trace trace = group.trace();
    EXPECT_EQ(collectives_of(trace).size(), 1U);
    const Trace pairs = pairs_of(trace);
    if (peer >= group.size()) {
      EXPECT_TRUE(pairs.empty());
      return;
    }
    ASSERT_EQ(pairs.size(), 64U);
    for (const TraceEntry& entry : pairs) {
      EXPECT_EQ(entry.operation, group.rank() < peer ? Operation::send : Operation::recv);
      EXPECT_EQ(entry.peer, peer);
      EXPECT_EQ(entry.bytes, 3);
      EXPECT_EQ(entry.state, State::done);
    }
    EXPECT_EQ(pairs.back().seq, 69U);
  });
}

TEST_P(TracesOfSeveral, ACoalesceIsAmongTheCollectivesWhateverItBeginsWith) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const Buffer data(group, DType::f32, {4});
    const Buffer message(group, DType::f32, {1});
    Coalesce calls({&group});
    if (rank == 0) (void)group.send_async(message, 1);
    (void)group.all_reduce_async(data);
    if (rank == 1) (void)group.recv_async(message, 0);
    calls.launch().wait();
    group.barrier();
    const Trace trace = collectives_of(group.trace());
    ASSERT_EQ(trace.size(), 2U);
    EXPECT_EQ(trace[0].operation, Operation::all_reduce);
    EXPECT_EQ(trace[0].ops, rank < 2 ? 2U : 1U);
    EXPECT_EQ(trace[0].bytes, 16);
    EXPECT_EQ(trace[1].seq, trace[0].seq + 1);
    EXPECT_TRUE(pairs_of(group.trace()).empty());
  });
}

TEST_P(TracesOfSeveral, ShowsWhatIsPendingToOtherThreads) {
  RankBarrier looked(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      std::exception_ptr thrown;
      std::thread caller([&] {
        try {
          group.barrier();
        } catch (...) {
          thrown = std::current_exception();
        }
      });
      Trace trace;
      for (int i = 0; i < 2000 && trace.empty(); ++i) {
        std::this_thread::sleep_for(1ms);
        trace = group.trace();
      }
      looked.wait();
      caller.join();
      if (thrown) std::rethrow_exception(thrown);
      ASSERT_EQ(trace.size(), 1U);
      EXPECT_EQ(trace[0].operation, Operation::barrier);
      EXPECT_EQ(trace[0].state, State::running);
    } else {
      looked.wait();
      group.barrier();
    }
    EXPECT_EQ(group.trace().back().state, State::done);
  });
}

TEST_P(Traces, AnAsyncCallRunsUntilItsWorkIsCollected) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    Work work = group.barrier_async();
    EXPECT_TRUE(work.wait_for(group_timeout));
    ASSERT_EQ(group.trace().size(), 1U);
    EXPECT_TRUE(group.trace()[0].async);
    EXPECT_EQ(group.trace()[0].state, State::running);
    work.wait();
    EXPECT_EQ(group.trace()[0].state, State::done);
  });
}

TEST_P(Traces, ShowsWhatWasRefusedAndWhatFailed) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, DType::f32, {4});
    expect_error(Errc::invalid_argument, {}, [&] { group.broadcast(data, -5); });
    group.abort("for the trace");
    expect_error(Errc::aborted, {}, [&] { group.all_reduce(data); });
    const Trace trace = group.trace();
    ASSERT_GE(trace.size(), 1U);
    EXPECT_EQ(trace[0].operation, Operation::broadcast);
    EXPECT_EQ(trace[0].state, State::refused);
    if (trace.size() > 1) {
      EXPECT_EQ(trace[1].state, State::failed);
    }
  });
}

TEST_P(Traces, SubGroupsHaveTheirOwn) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    auto part = group.split(0);
    ASSERT_TRUE(part.has_value());
    EXPECT_TRUE(part->trace().empty());
    const std::size_t before = group.trace().size();
    part->barrier();
    EXPECT_EQ(part->trace().size(), 1U);
    EXPECT_EQ(group.trace().size(), before);
  });
}

}  // namespace
}  // namespace tutti::test
