#include <atomic>
#include <limits>
#include <thread>
#include <utility>

#include "backends/nccl/double/rules.hpp"

// The double itself: correct calls give the right data and no report, and planned faults happen.
// nccl_rules_test.cpp and memory_rules_test.cpp break each of its rules once.

namespace tutti::test::nccl_double {
namespace {

TEST(DoubleTables, HaveNoEmptyEntry) {
#define TUTTI_FIELD(field, function) EXPECT_NE(nccl().field, nullptr) << #function;
  TUTTI_NCCL_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
#define TUTTI_FIELD(field, function, parameters) EXPECT_NE(cuda().field, nullptr) << #function;
  TUTTI_CUDA_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
  EXPECT_NE(cuda().get_error_name, nullptr);
  EXPECT_NE(cuda().get_error_string, nullptr);
}

class Right : public Double {};

TEST_F(Right, CollectivesGiveWhatTheyPromise) {
  constexpr int size = 3;
  on_bare_ranks(size, [](BareRank& at) {
    const auto mine = static_cast<float>(at.rank + 1);
    float* in = at.make(mine);
    float* out = at.make(0);
    EXPECT_EQ(at.all_reduce(in, out), ncclInProgress);
    EXPECT_EQ(at.settle(), ncclSuccess);
    EXPECT_TRUE(all_are(at.read(out), 6));

    nccl().reduce(in, out, count, ncclFloat32, ncclMax, 1, at.comm, at.stream);
    at.settle();
    EXPECT_TRUE(all_are(at.read(out), at.rank == 1 ? 3 : 6));

    nccl().broadcast(in, out, count, ncclFloat32, 2, at.comm, at.stream);
    at.settle();
    EXPECT_TRUE(all_are(at.read(out), 3));

    float* all = at.make(0, size * count);
    nccl().all_gather(in, all, count, ncclFloat32, at.comm, at.stream);
    at.settle();
    const auto gathered = at.read(all, size * count);
    for (std::size_t i = 0; i < gathered.size(); ++i)
      EXPECT_EQ(gathered[i], static_cast<float>(i / count + 1));

    nccl().reduce_scatter(all, out, count, ncclFloat32, ncclSum, at.comm, at.stream);
    at.settle();
    EXPECT_TRUE(all_are(at.read(out), static_cast<float>(3 * (at.rank + 1))));
  });
}

TEST_F(Right, AGroupIsOneKernelWhoseMessagesCross) {
  constexpr int size = 3;
  on_bare_ranks(size, [](BareRank& at) {
    float* in = at.make(static_cast<float>(at.rank));
    float* out = at.make(9);
    EXPECT_EQ(nccl().group_start(), ncclSuccess);
    EXPECT_EQ(nccl().send(in, count, ncclFloat32, (at.rank + 1) % size, at.comm, at.stream),
              ncclSuccess);
    EXPECT_EQ(nccl().recv(out, count, ncclFloat32, (at.rank + 2) % size, at.comm, at.stream),
              ncclSuccess);
    EXPECT_EQ(nccl().group_end(), ncclInProgress);
    EXPECT_EQ(at.settle(), ncclSuccess);
    EXPECT_TRUE(all_are(at.read(out), static_cast<float>((at.rank + 2) % size)));
  });
}

TEST_F(Right, AReductionMayBeDestroyedWhenTheCallHasReturned) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(static_cast<float>(at.rank + 1));
    float scale = at.rank == 0 ? 0.5F : 2.0F;
    ncclRedOp_t op{};
    EXPECT_EQ(nccl().red_op_create_pre_mul_sum(&op, &scale, ncclFloat32, ncclScalarHostImmediate,
                                               at.comm),
              ncclSuccess);
    nccl().group_start();
    nccl().all_reduce(data, data, count, ncclFloat32, op, at.comm, at.stream);
    EXPECT_EQ(nccl().red_op_destroy(op, at.comm), ncclSuccess);
    nccl().group_end();
    at.settle();
    EXPECT_TRUE(all_are(at.read(data), 4.5));
  });
}

TEST_F(Right, FinalizeThenDestroyLeavesNothing) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    at.all_reduce(data, data);
    at.settle();
    EXPECT_EQ(nccl().comm_finalize(at.comm), ncclInProgress);
    EXPECT_EQ(at.settle(), ncclSuccess);
    EXPECT_EQ(nccl().comm_destroy(at.comm), ncclSuccess);
    at.comm = nullptr;
  });
}

TEST_F(Right, NothingRunsInsideTheCallThatQueuesIt) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(3);
    std::vector<float> host(count, 7);
    cuda().memcpy_async(host.data(), data, bytes, cudaMemcpyDeviceToHost, at.stream);
    EXPECT_TRUE(all_are(host, 7));
    cuda().stream_synchronize(at.stream);
    EXPECT_TRUE(all_are(host, 3));
  });
}

TEST_F(Right, AnEventPutsTwoStreamsInOrder) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    cudaStream_t other = nullptr;
    cudaEvent_t event = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    cuda().event_create_with_flags(&event, cudaEventDisableTiming);
    fill(other, data, count, 5, 20ms);
    EXPECT_EQ(cuda().event_record(event, other), cudaSuccess);
    EXPECT_EQ(cuda().event_query(event), cudaErrorNotReady);
    EXPECT_EQ(cuda().get_last_error(), cudaErrorNotReady);
    EXPECT_EQ(cuda().get_last_error(), cudaSuccess);
    EXPECT_EQ(cuda().stream_wait_event(at.stream, event, 0), cudaSuccess);
    EXPECT_TRUE(all_are(at.read(data), 5));
    EXPECT_EQ(cuda().event_query(event), cudaSuccess);
    cuda().event_destroy(event);
    cuda().stream_destroy(other);
  });
}

// Behaviour that the documentation permits and a caller may not expect.
TEST_F(Right, ReductionsTakeTheirLiberties) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(at.rank == 0 ? 1.0F : std::numeric_limits<float>::quiet_NaN());
    nccl().all_reduce(data, data, count, ncclFloat32, ncclMax, at.comm, at.stream);
    at.settle();
    EXPECT_TRUE(all_are(at.read(data), 1)) << "a NaN won";
  });
  on_bare_ranks(3, [](BareRank& at) {
    const auto mine = static_cast<float>(at.rank + 1);
    float* data = at.make(mine);
    nccl().all_reduce(data, data, count, ncclFloat32, ncclAvg, at.comm, at.stream);
    at.settle();
    constexpr float third = 1.0F / 3;
    EXPECT_TRUE(all_are(at.read(data), (2 * third + 3 * third) + 1 * third));
  });
}

class Planned : public Double {};

TEST_F(Planned, AnInitHangsUntilItIsAborted) {
  set_faults(1, {.init_hangs = true});
  const auto id = new_id();
  RankBarrier seen(2);
  on_threads(2, [&](int rank) {
    cuda().set_device(rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    nccl().comm_init_rank_config(&comm, 2, id, rank, &config);
    if (rank == 0) {
      EXPECT_EQ(BareRank::settle(comm), ncclSuccess);
    } else {
      ncclResult_t state{};
      for (int i = 0; i < 100; ++i) nccl().comm_get_async_error(comm, &state);
      EXPECT_EQ(state, ncclInProgress);
    }
    seen.wait();
    EXPECT_EQ(nccl().comm_abort(comm), ncclSuccess);
  });
}

TEST_F(Planned, AnAsynchronousErrorIsReportedAndTheKernelStands) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    if (at.rank == 0) set_faults(0, {.async_error = ncclRemoteError});
    if (at.rank == 0) {
      EXPECT_EQ(at.settle(), ncclRemoteError);
      EXPECT_EQ(at.all_reduce(data, data), ncclRemoteError);
      EXPECT_NE(std::string(nccl().get_last_error(at.comm)), "");
    }
  });
}

TEST_F(Planned, OneCallFails) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    set_faults(at.rank, {.fails = "ncclAllReduce", .with = ncclSystemError});
    EXPECT_EQ(at.all_reduce(data, data), ncclSystemError);
    EXPECT_EQ(at.all_reduce(data, data), ncclInProgress);
    at.settle();
  });
}

TEST_F(Planned, OperationsStayInProgress) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    set_faults(at.rank, {.stays_in_progress = true});
    at.all_reduce(data, data);
    ncclResult_t state{};
    for (int i = 0; i < 100; ++i) nccl().comm_get_async_error(at.comm, &state);
    EXPECT_EQ(state, ncclInProgress);
  });
}

TEST_F(Planned, AnAbortReturnsWhenTheFaultIsTakenBack) {
  on_bare_ranks(1, [](BareRank& at) {
    set_faults(0, {.abort_hangs = true});
    std::atomic<bool> returned = false;
    std::thread aborts([&] {
      nccl().comm_abort(std::exchange(at.comm, nullptr));
      returned = true;
    });
    while (calls("ncclCommAbort") == 0) std::this_thread::yield();
    EXPECT_FALSE(returned);
    clear_faults();
    aborts.join();
  });
}

TEST_F(Planned, ABrokenDeviceSaysSoInEveryCall) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    set_faults(0, {.sticky = cudaErrorIllegalAddress});
    EXPECT_EQ(cuda().stream_synchronize(at.stream), cudaErrorIllegalAddress);
    EXPECT_EQ(cuda().get_last_error(), cudaErrorIllegalAddress);
    EXPECT_EQ(cuda().get_last_error(), cudaErrorIllegalAddress) << "it went away";
    EXPECT_EQ(at.all_reduce(data, data), ncclUnhandledCudaError);
    clear_faults();
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
