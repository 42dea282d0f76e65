#include <atomic>
#include <optional>

#include <tutti/coalesce.hpp>
#include <tutti/gather.hpp>

#include "backends/nccl/groups.hpp"

// Collectives that are captured into CUDA graphs, over the double: their streams and the refused
// calls. Each rank captures, all ranks synchronise, and each launches its graph.

namespace tutti::test::nccl_double {
namespace {

constexpr int size = 3;
constexpr int launches = 3;

/// Several threads with a device each need this mode, says the manual of NCCL.
constexpr auto mode = cudaStreamCaptureModeThreadLocal;

/// Captures what `calls` does on the rank's stream.
Graph capture(const Member& at, const std::function<void()>& calls) {
  EXPECT_EQ(begin_capture(at.compute, mode), cudaSuccess);
  calls();
  Graph graph;
  EXPECT_EQ(end_capture(at.compute, &graph), cudaSuccess);
  return graph;
}

class Captured : public Double {
 protected:
  Captured() { set_issues_on_a_thread(true); }  // Whose mode of capture is global.

  /// Captures once and launches three times with other inputs: input i of rank r is
  /// `r + 1 + 10 * launch`, and `expected(launch)` is what `out` then holds, row by row.
  static void replay(
      std::int64_t rows_in, std::int64_t rows_out,
      const std::function<void(const Member&, const TensorView& in, const TensorView& out)>& calls,
      const std::function<float(int rank, int launch, std::int64_t row)>& expected) {
    RankBarrier barrier(size);
    on_groups(size, [&](const Member& at) {
      const TensorView in = at.make(std::max<std::int64_t>(rows_in, 1) * size);
      const TensorView out = at.make(rows_out * size);
      {
        const Graph graph = capture(at, [&] { calls(at, in, out); });
        ASSERT_NE(graph, nullptr);
        for (int n = 0; n < launches; ++n) {
          at.fill(in, static_cast<float>(at.rank + 1 + 10 * n), 2ms);
          launch(graph, at.compute);
          const auto got = at.read(out, at.compute);
          for (std::int64_t row = 0; row < rows_out; ++row)
            EXPECT_EQ(got[static_cast<std::size_t>(row)], expected(at.rank, n, row))
                << "rank " << at.rank << ", launch " << n << ", row " << row;
        }
        cuda().stream_synchronize(at.compute);
      }
      at.free(in);
      at.free(out);
      barrier.wait();
    });
  }

  static TensorView rows(const TensorView& of, std::int64_t n, std::int64_t from = 0) {
    return {static_cast<float*>(of.data) + from, DType::f32, {n}, of.device};
  }
  static float sum(int launch) { return static_cast<float>(1 + 2 + 3 + 3 * 10 * launch); }
  static float of_rank(int rank, int launch) { return static_cast<float>(rank + 1 + 10 * launch); }
};

TEST_F(Captured, ACoalescedCallIsOnePartOfTheGraph) {
  replay(
      8, 8,
      [](const Member& at, const TensorView& in, const TensorView& out) {
        Coalesce together(at.group);
        const CallOptions options{.stream = at.stream()};
        Work one = at.group.all_reduce_async(rows(in, 4), rows(out, 4), ReduceOp::sum, options);
        Work two = at.group.all_reduce_async(rows(in, 4, 4), rows(out, 4, 4), ReduceOp::premul(2),
                                             options);
        Work all = together.launch();
        all.block_stream(at.stream());
      },
      [](int, int n, std::int64_t row) { return row < 4 ? sum(n) : 2 * sum(n); });
}

TEST_F(Captured, RaggedRowsUseScratchMemoryOfTheGraph) {
  const std::vector<std::int64_t> counts{2, 0, 3};
  replay(
      3, 5,
      [&](const Member& at, const TensorView& in, const TensorView& out) {
        const auto mine = counts[static_cast<std::size_t>(at.rank)];
        at.group.all_gather(rows(in, mine), rows(out, 5), counts, {.stream = at.stream()});
      },
      [](int, int n, std::int64_t row) { return of_rank(row < 2 ? 0 : 2, n); });
}

TEST_F(Captured, AnAsyncCallRunsBesideTheKernelsBehindIt) {
  replay(
      4, 8,
      [](const Member& at, const TensorView& in, const TensorView& out) {
        Work work = at.group.all_reduce_async(rows(in, 4), rows(out, 4), ReduceOp::sum,
                                              {.stream = at.stream()});
        at.fill(rows(out, 4, 4), 7, 1ms);
        work.block_stream(at.stream());
      },
      [](int, int n, std::int64_t row) { return row < 4 ? sum(n) : 7; });
}

TEST_F(Captured, CallsOutsideGoOnWhileAnotherStreamCaptures) {
  RankBarrier barrier(size);
  on_groups(size, [&](const Member& at) {
    const TensorView data = at.make();
    const TensorView other = at.make();
    at.fill(data, 1);
    at.fill(other, 1);
    cuda().stream_synchronize(at.compute);
    Work before = at.group.all_reduce_async(other, ReduceOp::sum, {.stream = {at.other}});
    {
      const Graph graph = capture(at, [&] {
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
        at.group.all_reduce(other, ReduceOp::sum, {.stream = {at.other}});
        before.wait();  // It asks an event, which CUDA would prohibit here.
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
      });
      ASSERT_NE(graph, nullptr);
      EXPECT_EQ(at.read(other, at.other), std::vector<float>(Member::count, 9));
      launch(graph, at.compute);
      EXPECT_TRUE(at.holds(data, 9));
    }
    at.free(data);
    cuda().stream_synchronize(at.compute);
    at.group.memory().release(other.data, other.bytes(), {at.other});
    barrier.wait();
  });
}

TEST_F(Captured, TheGroupsThreadMayAskWhileOthersCaptureInGlobalMode) {
  RankBarrier barrier(size);
  on_groups(size, [&](const Member& at) {
    const TensorView data = at.make();
    const TensorView late = at.make();
    at.fill(data, 1);
    at.fill(late, 1, 30ms);  // Its call is under way during the capture.
    Work before = at.group.all_reduce_async(late, ReduceOp::sum, {.stream = at.stream()});
    barrier.wait();
    EXPECT_EQ(begin_capture(at.other, cudaStreamCaptureModeGlobal), cudaSuccess);
    at.group.all_reduce(data, ReduceOp::sum, {.stream = {at.other}});
    before.wait();
    barrier.wait();
    Graph graph;
    EXPECT_EQ(end_capture(at.other, &graph), cudaSuccess);
    barrier.wait();  // All captures have ended: the following calls wait on the host.
    launch(graph, at.compute);
    EXPECT_TRUE(at.holds(data, size));
    EXPECT_TRUE(at.holds(late, size));
    at.free(data);
    at.free(late);
    barrier.wait();
  });
}

TEST_F(Captured, WhatTheHostTakesPartInIsRefusedByName) {
  RankBarrier barrier(size);
  on_groups(size, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    const CallOptions options{.stream = at.stream()};
    std::atomic<int> ran = 0;
    Work kept;
    {
      const Graph graph = capture(at, [&] {
        expect_error(Errc::unsupported, {"barrier", "graph"}, [&] { at.group.barrier(options); });
        float here = 0;
        expect_error(Errc::unsupported, {"host memory", "graph"},
                     [&] { at.group.memory().copy(&here, data.data, sizeof here, at.stream()); });
        expect_error(Errc::unsupported, {"all_gather", "graph"},
                     [&] { (void)all_gather_rows(at.group, data, {}, options); });
        expect_error(Errc::unsupported, {"send", "graph"},
                     [&] { at.group.send(data, (at.rank + 1) % size, 0, options); });
        kept = at.group.all_reduce_async(data, ReduceOp::sum, options);
        EXPECT_FALSE(kept.done());
        EXPECT_FALSE(kept.wait_for(1s));
        expect_error(Errc::unsupported, {"graph", "block_stream"}, [&] { kept.wait(); });
        expect_error(Errc::unsupported, {"graph", "same capture"},
                     [&] { kept.block_stream({at.other}); });
        kept.block_stream(at.stream());
        Work again = at.group.all_reduce_async(data, ReduceOp::sum, options);
        again.block_stream(at.stream());
        expect_error(Errc::unsupported, {"graph"}, [&] { (void)std::move(again).then([] {}); });
        expect_error(Errc::unsupported, {"graph"},
                     [&] { kept.on_done([&](const Error*) { ++ran; }); });
        expect_error(Errc::unsupported, {"graph"}, [&] { std::move(again).detach(); });
      });
      ASSERT_NE(graph, nullptr);
      expect_error(Errc::unsupported, {"graph", "same capture"},
                   [&] { kept.block_stream(at.stream()); });
      launch(graph, at.compute);
      EXPECT_TRUE(at.holds(data, 9));
    }
    at.group.all_reduce(data, ReduceOp::sum, options);  // The group goes on.
    EXPECT_TRUE(at.holds(data, 27));
    EXPECT_EQ(ran, 0) << "a callback that was refused ran";
    at.free(data);
    barrier.wait();
  });
}

// No call is in flight: only the group's thread can detect it.
TEST_F(Captured, AnErrorWhileOnlyGraphsRunEndsTheGroupOnAllRanks) {
  RankBarrier barrier(size);
  const int aborted = calls("ncclCommAbort");
  on_groups(size, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    {
      const Graph graph =
          capture(at, [&] { at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()}); });
      launch(graph, at.compute);
      EXPECT_TRUE(at.holds(data, size));
      barrier.wait();
      if (at.rank == 1) set_faults(1, {.async_error = ncclRemoteError});
      const auto limit = Deadline::after(10s);
      while (calls("ncclCommAbort") < aborted + size && !limit.expired()) std::this_thread::yield();
      EXPECT_EQ(calls("ncclCommAbort"), aborted + size);
      barrier.wait();
      if (at.rank == 1) set_faults(1, {});
      barrier.wait();
    }
    at.free(data);
  });
}

TEST_F(Captured, AnErrorDoesNotWaitForTheEndOfAGraph) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    {
      const Graph graph =
          capture(at, [&] { at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()}); });
      launch(graph, at.compute);
      EXPECT_TRUE(at.holds(data, 2));
      const auto in_time = Deadline::after(3s);
      if (at.rank == 0)
        expect_error(Errc::timeout, {"missing: 1", "destroy them"}, [&] {
          at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream(), .timeout = 200ms})
              .wait();
        });
      EXPECT_FALSE(in_time.expired());  // ncclCommAbort has not returned.
      barrier.wait();
    }
    at.free(data);
  });
}

TEST_F(Captured, AGroupThatEndsBeforeItsGraphsFreesItsCommunicatorWithTheLastOne) {
  const auto store = make_memory_store();
  const int destroyed = calls("ncclCommDestroy");
  const int aborted = calls("ncclCommAbort");
  RankBarrier barrier(2);
  on_threads(2, [&](int rank) {
    cuda().set_device(rank);
    cudaStream_t stream = nullptr;
    cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
    std::optional<ProcessGroup> group = make_group(rank, 2, store, {});
    Memory& memory = group->memory();
    void* data = memory.allocate(400, {stream});
    Graph graph;
    EXPECT_EQ(begin_capture(stream, mode), cudaSuccess);
    group->all_reduce({data, DType::f32, {100}, memory.device()}, ReduceOp::sum,
                      {.stream = {stream}});
    EXPECT_EQ(end_capture(stream, &graph), cudaSuccess);
    const auto in_time = Deadline::after(1s);
    group.reset();
    EXPECT_FALSE(in_time.expired());
    barrier.wait();
    EXPECT_EQ(calls("ncclCommDestroy"), destroyed);
    barrier.wait();
    graph.reset();
    memory.release(data, 400, {stream});
    cuda().stream_synchronize(stream);
    cuda().stream_destroy(stream);
  });
  const auto limit = Deadline::after(5s);
  while (calls("ncclCommDestroy") < destroyed + 2 && !limit.expired()) std::this_thread::yield();
  EXPECT_EQ(calls("ncclCommDestroy"), destroyed + 2);
  EXPECT_EQ(calls("ncclCommAbort"), aborted);
}

// Its captured calls are copies, unless NCCL scales.
TEST_F(Captured, AGroupOfOneRankWarnsOfTheGraphsThatHoldItsCommunicator) {
  for (const bool scales : {false, true}) {
    const auto reduce = scales ? ReduceOp::premul(2) : ReduceOp::sum;
    std::string log;
    Graph graph;
    const int destroyed = calls("ncclCommDestroy");
    on_groups(1,
              [&](const Member& at) {
                const TensorView array = at.make();
                graph = capture(
                    at, [&] { at.group.all_reduce(array, reduce, {.stream = at.stream()}); });
                at.free(array);
              },
              {.logger = [&](LogLevel, std::string_view text) { log += text; }});
    EXPECT_EQ(log.find("ends before the CUDA graphs") != std::string::npos, scales) << log;
    graph.reset();
    const auto limit = Deadline::after(5s);
    while (calls("ncclCommDestroy") == destroyed && !limit.expired()) std::this_thread::yield();
  }
}

// The call is inside NCCL, which waits for a rank that makes no call.
TEST_F(Captured, APeersAbortEndsACallThatIsBeingCaptured) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    if (at.rank == 1) {
      barrier.wait();
      at.group.abort("it goes");
    } else {
      EXPECT_EQ(begin_capture(at.compute, mode), cudaSuccess);
      set_faults(0, {.stays_in_progress = true});
      barrier.wait();
      const auto limit = Deadline::after(20s);
      expect_error(Errc::aborted, {"it goes"}, [&] {
        at.group.all_reduce(data, ReduceOp::sum,
                            {.stream = at.stream(), .deadline = Deadline::after(60s)});
      });
      EXPECT_FALSE(limit.expired());
      set_faults(0, {});
      Graph graph;
      (void)end_capture(at.compute, &graph);
      (void)cuda().get_last_error();
    }
    barrier.wait();
    at.free(data);
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
