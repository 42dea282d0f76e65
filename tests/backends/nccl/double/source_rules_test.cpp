// The double does what NCCL's sources do where its manual says less.

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "backends/nccl/double/rules.hpp"

namespace tutti::test::nccl_double {
namespace {

class Sources : public Double {
 protected:
  /// A graph with one all_reduce of all ranks.
  static Graph capture(BareRank& at, float* data) {
    EXPECT_EQ(begin_capture(at.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    at.all_reduce(data, data);
    at.settle();
    Graph graph;
    EXPECT_EQ(end_capture(at.stream, &graph), cudaSuccess);
    return graph;
  }
};

TEST_F(Sources, AnAbortEndsWhenTheLastGraphIsDestroyed) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    Graph graph = capture(at, data);
    launch(graph, at.stream);
    EXPECT_TRUE(all_are(at.read(data), 2));
    std::atomic<bool> returned = false;
    std::thread aborts([&] {
      nccl().comm_abort(std::exchange(at.comm, nullptr));
      returned = true;
    });
    std::this_thread::sleep_for(30ms);
    EXPECT_FALSE(returned);
    graph.reset();
    aborts.join();
  });
}

TEST_F(Sources, ACommunicatorIsFinalizedWhenTheLastGraphIsDestroyed) {
  RankBarrier barrier(2);
  on_bare_ranks(2, [&](BareRank& at) {
    float* data = at.make(1);
    Graph graph = capture(at, data);
    barrier.wait();
    EXPECT_EQ(nccl().comm_finalize(at.comm), ncclInProgress);
    barrier.wait();
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < 100; ++i) nccl().comm_get_async_error(at.comm, &state);
    EXPECT_EQ(state, ncclInProgress);
    graph.reset();
    EXPECT_EQ(at.settle(), ncclSuccess);
    EXPECT_EQ(nccl().comm_destroy(std::exchange(at.comm, nullptr)), ncclSuccess);
  });
}

TEST_F(Sources, ACapturedCallWaitsForAllRanksWhereTheyRegisterItsArrays) {
  set_connects_each_function(true);
  RankBarrier barrier(2);
  on_bare_ranks(2, [&](BareRank& at) {
    float* data = at.make(1);
    at.all_reduce(data, data);  // Connects the ranks.
    at.settle();
    cuda().stream_synchronize(at.stream);
    barrier.wait();
    if (at.rank == 1) barrier.wait();
    EXPECT_EQ(cuda().stream_begin_capture(at.stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    at.all_reduce(data, data);
    if (at.rank == 0) {
      ncclResult_t state = ncclSuccess;
      for (int i = 0; i < 100; ++i) nccl().comm_get_async_error(at.comm, &state);
      EXPECT_EQ(state, ncclInProgress);
      barrier.wait();
    }
    EXPECT_EQ(at.settle(), ncclSuccess);
    barrier.wait();  // A rank that has ended is none for which the others may wait.
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cuda().stream_end_capture(at.stream, &graph), cudaSuccess);
    EXPECT_EQ(cuda().graph_destroy(graph), cudaSuccess);
  });
}

TEST_F(Sources, AGraphThatIsNeverDestroyedIsReported) {
  {
    const BareRank at(0, 1);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cuda().stream_begin_capture(at.stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    EXPECT_EQ(cuda().stream_end_capture(at.stream, &graph), cudaSuccess);
    EXPECT_EQ(cuda().graph_instantiate_with_flags(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cuda().graph_destroy(graph), cudaSuccess);
    EXPECT_EQ(cuda().graph_launch(executable, at.stream), cudaSuccess);
  }
  check_nothing_is_left(0ms);
  expect_violation({"1 graphs were never destroyed"});
}

TEST_F(Sources, OneRankIsACopyThatIsNeverInProgress) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    float* out = at.make(0);
    EXPECT_EQ(at.all_reduce(data, out), ncclSuccess);
    EXPECT_TRUE(all_are(at.read(out), 1));
    float half = 0.5F;
    ncclRedOp_t scaled{};
    nccl().red_op_create_pre_mul_sum(&scaled, &half, ncclFloat32, ncclScalarHostImmediate, at.comm);
    EXPECT_EQ(nccl().all_reduce(data, data, count, ncclFloat32, scaled, at.comm, at.stream),
              ncclSuccess);
    nccl().red_op_destroy(scaled, at.comm);
    EXPECT_TRUE(all_are(at.read(data), 0.5F));
  });
}

TEST_F(Sources, AWindowWithoutSupportIsAHandleBeforeItsVersion) {
  set_registers(false, true);
  for (const auto& [version, is_null] : {std::pair(22809, false), std::pair(22902, true)}) {
    set_version(version);
    on_bare_ranks(1, [null = is_null](const BareRank& at) {
      void* data = nullptr;
      void* window = nullptr;
      nccl().mem_alloc(&data, 4096);
      EXPECT_EQ(nccl().comm_window_register(at.comm, data, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
                ncclSuccess);
      EXPECT_EQ(window == nullptr, null);
      if (window != nullptr) nccl().comm_window_deregister(at.comm, window);
      nccl().mem_free(data);
    });
  }
}

TEST_F(Sources, APeerInTheProcessHasNoAccessToAPool) {
  set_version(22304);
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    at.all_reduce(data, data);
    at.settle();
    at.read(data);
  });
  expect_violation({"has no access"});
}

TEST_F(Sources, ACallBesideAGraphEndsCapturesInGlobalMode) {
  set_issues_on_a_thread(true);
  RankBarrier barrier(2);
  on_bare_ranks(2, [&](BareRank& at) {
    float* data = at.make(1);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    const auto call_during_a_capture = [&] {
      barrier.wait();
      if (at.rank == 0) (void)begin_capture(other, cudaStreamCaptureModeGlobal);
      barrier.wait();
      at.all_reduce(data, data);
      at.settle();
      barrier.wait();
      Graph taken;
      const auto ended = at.rank == 0 ? end_capture(other, &taken) : cudaSuccess;
      barrier.wait();
      return ended;
    };
    EXPECT_EQ(call_during_a_capture(), cudaSuccess);
    Graph graph = capture(at, data);
    const auto ended = call_during_a_capture();
    EXPECT_EQ(ended, at.rank == 0 ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    graph.reset();
    EXPECT_EQ(call_during_a_capture(), cudaSuccess);
    cuda().stream_destroy(other);
    cuda().stream_synchronize(at.stream);
  });
  expect_violation({"cudaEventQuery of NCCL"});
}

/// Makes two communicators of the same two ranks, and a message over one of them while an
/// all_reduce over the other one is ncclInProgress.
void message_beside_a_collective(bool connected) {
  set_messages_side_by_side(true);
  const auto second = [] {
    ncclUniqueId id;
    nccl().get_unique_id(&id);
    return id;
  }();
  ncclUniqueId first;
  nccl().get_unique_id(&first);
  on_threads(2, [&](int rank) {
    BareRank at(rank, 2, first);
    float* data = at.make(1);
    float* message = at.make(1);
    const ncclComm_t pair = at.make_comm(second);
    BareRank::settle(pair);
    const auto send = [&] {
      if (rank == 0)
        nccl().send(message, count, ncclFloat32, 1, pair, at.stream);
      else
        nccl().recv(message, count, ncclFloat32, 0, pair, at.stream);
    };
    at.all_reduce(data, data);
    at.settle();
    if (connected) {
      send();
      BareRank::settle(pair);
    }
    at.read(message);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    nccl().all_reduce(data, data, count, ncclFloat32, ncclSum, at.comm, other);
    send();
    at.settle();
    BareRank::settle(pair);
    cuda().stream_synchronize(other);
    cuda().stream_destroy(other);
    at.read(message);
    nccl().comm_abort(pair);
  });
}

TEST_F(Sources, AConnectedMessageIsNotMadeBesideAnotherCall) {
  message_beside_a_collective(false);
  EXPECT_TRUE(take_violations().empty()) << "the first message of a communicator connects";
  message_beside_a_collective(true);
  expect_violation({"still ncclInProgress"});
}

}  // namespace
}  // namespace tutti::test::nccl_double
