#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>

#include "backends/nccl/double/bare_rank.hpp"
#include "support/sanitizers.hpp"

// The double itself: calls that keep the rules give the right data and no report, and every rule
// that it knows is broken once by hand. Otherwise silence over a backend would mean nothing.

namespace tutti::test::nccl_double {
namespace {

constexpr std::size_t count = BareRank::count;
constexpr std::size_t bytes = count * sizeof(float);

bool all_are(const std::vector<float>& values, float want) {
  return std::ranges::all_of(values, [&](float value) { return value == want; });
}

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

// What the documentation permits and a caller may not have thought of.
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

class Wrong : public Double {
 protected:
  using Call = std::function<void(BareRank& at, float* data)>;

  /// Looks at the stream until it is empty or the double has had time to notice that it hangs.
  static void wait_in_vain(const BareRank& at) {
    const auto limit = std::chrono::steady_clock::now() + 300ms;
    cudaEvent_t end = nullptr;
    cuda().event_create_with_flags(&end, cudaEventDisableTiming);
    cuda().event_record(end, at.stream);
    while (cuda().event_query(end) != cudaSuccess && std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    cuda().event_destroy(end);
    cuda().get_last_error();
  }

  /// Every rank makes its call; what comes of it is dropped.
  static void each(int size, const Call& call) {
    on_bare_ranks(size, [&](BareRank& at) {
      float* data = at.make(1, static_cast<std::size_t>(size) * count);
      call(at, data);
      at.settle();
      wait_in_vain(at);
    });
  }
};

TEST_F(Wrong, CountsThatDiffer) {
  each(2, [](BareRank& at, float* data) {
    at.all_reduce(data, data, count - static_cast<std::size_t>(at.rank));
  });
  expect_violation({"mismatch: ncclAllReduce 0 of"});
}

TEST_F(Wrong, TypesThatDiffer) {
  each(2, [](BareRank& at, float* data) {
    nccl().all_reduce(data, data, count, at.rank == 0 ? ncclFloat32 : ncclInt32, ncclSum, at.comm,
                      at.stream);
  });
  expect_violation({"mismatch"});
}

TEST_F(Wrong, ReductionsThatDiffer) {
  each(2, [](BareRank& at, float* data) {
    nccl().all_reduce(data, data, count, ncclFloat32, at.rank == 0 ? ncclSum : ncclMax, at.comm,
                      at.stream);
  });
  expect_violation({"mismatch"});
}

TEST_F(Wrong, RootsThatDiffer) {
  each(2, [](BareRank& at, float* data) {
    nccl().broadcast(data, data, count, ncclFloat32, at.rank, at.comm, at.stream);
  });
  expect_violation({"mismatch"});
}

TEST_F(Wrong, FunctionsThatDiffer) {
  each(2, [](BareRank& at, float* data) {
    if (at.rank == 0) {
      nccl().reduce(data, data, count, ncclFloat32, ncclSum, 0, at.comm, at.stream);
    } else {
      nccl().broadcast(data, data, count, ncclFloat32, 0, at.comm, at.stream);
    }
  });
  expect_violation({"mismatch"});
}

TEST_F(Wrong, MessagesWhoseCountsDiffer) {
  each(2, [](BareRank& at, float* data) {
    if (at.rank == 0) {
      nccl().send(data, count, ncclFloat32, 1, at.comm, at.stream);
    } else {
      nccl().recv(data, count - 1, ncclFloat32, 0, at.comm, at.stream);
    }
  });
  expect_violation({"mismatch: nccl"});
}

// NCCL drops a collective without elements, so the others wait for the next one of that rank.
TEST_F(Wrong, ACollectiveThatIsEmptyOnOneRankAlone) {
  each(2, [](BareRank& at, float* data) {
    if (at.rank == 0) {
      at.all_reduce(data, data, 0);
      nccl().broadcast(data, data, count, ncclFloat32, 0, at.comm, at.stream);
    } else {
      at.all_reduce(data, data);
    }
  });
  expect_violation({"mismatch"});
}

TEST_F(Wrong, AGroupThatIsLeftOpen) {
  std::thread([] { nccl().group_start(); }).join();
  expect_violation({"a thread ended inside ncclGroupStart"});
  nccl().group_start();
  check_nothing_is_left();
  expect_violation({"a group with 0 calls was left open"});
}

TEST_F(Wrong, TheEndOfNoGroup) {
  EXPECT_EQ(nccl().group_end(), ncclInvalidUsage);
  expect_violation({"no open group"});
}

TEST_F(Wrong, ACallAfterAbort) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    const ncclComm_t gone = std::exchange(at.comm, nullptr);
    nccl().comm_abort(gone);
    EXPECT_EQ(nccl().all_reduce(data, data, count, ncclFloat32, ncclSum, gone, at.stream),
              ncclInvalidArgument);
    expect_violation({"was aborted before"});
    ncclResult_t state{};
    nccl().comm_get_async_error(gone, &state);
    expect_violation({"was aborted before"});
    nccl().comm_abort(gone);
    expect_violation({"was aborted before"});
  });
}

TEST_F(Wrong, ACallAfterDestroy) {
  on_bare_ranks(1, [](BareRank& at) {
    const ncclComm_t gone = std::exchange(at.comm, nullptr);
    nccl().comm_destroy(gone);
    nccl().comm_destroy(gone);
    expect_violation({"was destroyed before"});
  });
}

TEST_F(Wrong, DestroyWhileInProgress) {
  on_bare_ranks(1, [](BareRank& at) {
    nccl().comm_finalize(at.comm);
    EXPECT_EQ(nccl().comm_destroy(at.comm), ncclInvalidArgument);
    expect_violation({"still ncclInProgress"});
  });
}

TEST_F(Wrong, FinalizeTwiceAndACallAfterIt) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    nccl().comm_finalize(at.comm);
    nccl().comm_finalize(at.comm);
    expect_violation({"finalized before"});
    at.settle();
    at.all_reduce(data, data);
    expect_violation({"finalized before"});
  });
}

TEST_F(Wrong, OneRankThatDoesNotAbortWithTheOthers) {
  on_bare_ranks(2, [](BareRank& at) {
    if (at.rank == 1) at.comm = nullptr;
  });
  check_nothing_is_left();
  expect_violation({"neither destroyed nor aborted", "was aborted, and"});
}

TEST_F(Wrong, ACallWhileInProgress) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    at.all_reduce(data, data);
    EXPECT_EQ(at.all_reduce(data, data), ncclInvalidArgument);
    expect_violation({"still ncclInProgress"});
    at.settle();
  });
}

TEST_F(Wrong, WorkOnAStreamThatNcclIsStillEnqueuingOn) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    cudaEvent_t event = nullptr;
    cuda().event_create_with_flags(&event, cudaEventDisableTiming);
    at.all_reduce(data, data);
    cuda().event_record(event, at.stream);
    expect_violation({"still putting calls on it"});
    at.settle();
    cuda().event_destroy(event);
  });
}

TEST_F(Wrong, ASecondCommunicatorOfTheDeviceWhileTheFirstIsInProgress) {
  const auto id = new_id();
  on_bare_ranks(1, [&](BareRank& at) {
    float* data = at.make(1);
    const ncclComm_t second = at.make_comm(id);
    BareRank::settle(second);
    at.all_reduce(data, data);
    nccl().all_reduce(data, data, count, ncclFloat32, ncclSum, second, at.stream);
    expect_violation({"are still ncclInProgress"});
    at.settle();
    BareRank::settle(second);
    nccl().comm_abort(second);
  });
}

TEST_F(Wrong, TwoThreadsWithCallsOfOneDevice) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    float* other = at.make(1);
    nccl().group_start();
    at.all_reduce(data, data);
    std::thread([&] {
      cuda().set_device(0);
      at.all_reduce(other, other);
    }).join();
    expect_violation({"another thread has an open group"});
    at.settle();
    nccl().group_end();
    at.settle();
    take_violations();
  });
}

TEST_F(Wrong, AnAbortWhileAnotherThreadIsInAGroup) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    nccl().group_start();
    at.all_reduce(data, data);
    std::thread([&] { nccl().comm_abort(std::exchange(at.comm, nullptr)); }).join();
    expect_violation({"another thread is within a group"});
    nccl().group_end();
    expect_violation({"was ended while a group had calls on it"});
  });
}

TEST_F(Wrong, AnOrderOfTwoCommunicatorsThatDiffersBetweenRanks) {
  const auto id = new_id();
  Meeting launched(2);
  on_bare_ranks(2, [&](BareRank& at) {
    float* one = at.make(1);
    float* two = at.make(1);
    const ncclComm_t second = at.make_comm(id);
    BareRank::settle(second);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    // Connects them, in one order.
    at.all_reduce(one, one);
    at.settle();
    nccl().all_reduce(two, two, count, ncclFloat32, ncclSum, second, other);
    BareRank::settle(second);
    cuda().stream_synchronize(other);
    const auto first_call = [&] {
      at.all_reduce(one, one);
      at.settle();
    };
    const auto second_call = [&] {
      nccl().all_reduce(two, two, count, ncclFloat32, ncclSum, second, other);
      BareRank::settle(second);
    };
    if (at.rank == 0) first_call();
    second_call();
    if (at.rank == 1) first_call();
    wait_in_vain(at);
    launched.wait();
    nccl().comm_abort(std::exchange(at.comm, nullptr));
    nccl().comm_abort(second);
    cuda().stream_synchronize(other);
    cuda().stream_destroy(other);
  });
  expect_violation({"deadlock: ncclAllReduce"});
}

TEST_F(Wrong, MessagesThatCrossWithoutAGroup) {
  on_bare_ranks(2, [](BareRank& at) {
    float* in = at.make(1);
    float* out = at.make(1);
    nccl().send(in, count, ncclFloat32, 1 - at.rank, at.comm, at.stream);
    at.settle();
    nccl().recv(out, count, ncclFloat32, 1 - at.rank, at.comm, at.stream);
    at.settle();
    wait_in_vain(at);
  });
  expect_violation({"deadlock: ncclSend"});
}

// A backend that makes a communicator per direction counts on more than is promised.
TEST_F(Wrong, MessagesOfTwoCommunicatorsThatCrossUnlessTheyRunSideBySide) {
  for (const bool side_by_side : {false, true}) {
    set_messages_side_by_side(side_by_side);
    const auto id = new_id();
    Meeting launched(2);
    on_bare_ranks(2, [&](BareRank& at) {
      float* in = at.make(1);
      float* out = at.make(0);
      const ncclComm_t second = at.make_comm(id);
      BareRank::settle(second);
      cudaStream_t other = nullptr;
      cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
      // Connects them, in one order.
      float* one = at.make(0);
      for (const ncclComm_t comm : {at.comm, second}) {
        nccl().all_reduce(one, one, count, ncclFloat32, ncclSum, comm, at.stream);
        BareRank::settle(comm);
      }
      const ncclComm_t from_zero = at.comm;
      const auto sends = [&](ncclComm_t comm) {
        nccl().send(in, count, ncclFloat32, 1 - at.rank, comm, other);
        BareRank::settle(comm);
      };
      sends(at.rank == 0 ? from_zero : second);
      nccl().recv(out, count, ncclFloat32, 1 - at.rank, at.rank == 0 ? second : from_zero,
                  at.stream);
      BareRank::settle(at.rank == 0 ? second : from_zero);
      wait_in_vain(at);
      if (side_by_side) {
        EXPECT_TRUE(all_are(at.read(out), 1));
      }
      launched.wait();
      nccl().comm_abort(std::exchange(at.comm, nullptr));
      nccl().comm_abort(second);
      cuda().stream_synchronize(other);
      cuda().stream_destroy(other);
    });
    if (!side_by_side) expect_violation({"deadlock: ncclSend"});
  }
}

TEST_F(Wrong, AKernelThatDoesNotWaitForItsInput) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    cudaStream_t compute = nullptr;
    cuda().stream_create_with_flags(&compute, cudaStreamNonBlocking);
    fill(compute, data, count, 5);
    at.all_reduce(data, data);
    at.settle();
    expect_violation({"race: ncclAllReduce"});
    cuda().stream_synchronize(compute);
    cuda().stream_destroy(compute);
  });
}

TEST_F(Wrong, AReaderThatDoesNotWaitForTheKernel) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    float* seen = at.make(0);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    at.all_reduce(data, data);
    at.settle();
    copy(other, seen, data, count);
    expect_violation({"race: a kernel that copies"});
    cuda().stream_synchronize(other);
    cuda().stream_destroy(other);
  });
}

TEST_F(Wrong, AFreeThatDoesNotWaitForTheKernel) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    at.all_reduce(data, data);
    at.settle();
    cuda().free_async(data, other);
    at.forget(data);
    expect_violation({"race: cudaFreeAsync"});
    cuda().stream_synchronize(other);
    cuda().stream_destroy(other);
  });
}

TEST_F(Wrong, UseOfFreedMemoryAndASecondFree) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    at.forget(data);
    cuda().free_async(data, at.stream);
    cuda().memset_async(data, 0, bytes, at.stream);
    expect_violation({"uses freed memory"});
    cuda().free_async(data, at.stream);
    expect_violation({"freed already"});
    EXPECT_EQ(at.all_reduce(data, data), ncclInvalidArgument);
    expect_violation({"not memory of its device"});
  });
}

TEST_F(Wrong, BytesOutsideABlock) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    cuda().memset_async(data, 0, bytes + 1, at.stream);
    expect_violation({"of a block of"});
    nccl().broadcast(data, data, count + 1, ncclFloat32, 0, at.comm, at.stream);
    at.settle();
    expect_violation({"of a block of"});
  });
}

TEST_F(Wrong, MemoryOfTheHostAndOfAnotherDevice) {
  on_bare_ranks(1, [](BareRank& at) {
    std::vector<float> host(count);
    EXPECT_EQ(at.all_reduce(host.data(), host.data()), ncclInvalidArgument);
    expect_violation({"not memory of its device"});
    void* foreign = nullptr;
    cuda().set_device(1);
    cuda().malloc_async(&foreign, bytes, nullptr);
    cuda().stream_synchronize(nullptr);
    EXPECT_EQ(at.all_reduce(static_cast<float*>(foreign), static_cast<float*>(foreign)),
              ncclInvalidArgument);
    expect_violation({"not memory of its device"});
    cuda().free_async(foreign, nullptr);
    cuda().stream_synchronize(nullptr);
    cuda().set_device(0);
  });
}

TEST_F(Wrong, TheDefaultStreamOfAnotherDevice) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    cuda().set_device(1);
    cuda().memset_async(data, 0, bytes, nullptr);
    expect_violation({"the default stream of device 1 uses memory of device 0"});
    cuda().stream_synchronize(nullptr);
    cuda().set_device(0);
  });
}

TEST_F(Wrong, AnEventAndAStreamOfTwoDevices) {
  on_bare_ranks(1, [](BareRank& at) {
    cudaEvent_t event = nullptr;
    cuda().set_device(1);
    cuda().event_create_with_flags(&event, cudaEventDisableTiming);
    EXPECT_EQ(cuda().event_record(event, at.stream), cudaErrorInvalidResourceHandle);
    expect_violation({"an event of device 1"});
    cuda().event_destroy(event);
    EXPECT_EQ(cuda().event_query(event), cudaErrorInvalidResourceHandle);
    expect_violation({"a destroyed event"});
    cuda().set_device(0);
  });
}

TEST_F(Wrong, AStreamOfAnotherDeviceInACollective) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    cudaStream_t foreign = nullptr;
    cuda().set_device(1);
    cuda().stream_create_with_flags(&foreign, cudaStreamNonBlocking);
    cuda().set_device(0);
    nccl().all_reduce(data, data, count, ncclFloat32, ncclSum, at.comm, foreign);
    expect_violation({"of device 1"});
    cuda().stream_destroy(foreign);
    nccl().all_reduce(data, data, count, ncclFloat32, ncclSum, at.comm, foreign);
    expect_violation({"a destroyed stream"});
  });
}

TEST_F(Wrong, InputAndOutputThatOverlap) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(0, 4 * count);
    at.all_reduce(data, data + 1);
    at.settle();
    cuda().stream_synchronize(at.stream);
    nccl().all_gather(data, data, count / 2, ncclFloat32, at.comm, at.stream);
    at.settle();
    cuda().stream_synchronize(at.stream);
  });
  expect_violation({"overlap, and are not in place: ncclAllReduce",
                    "overlap, and are not in place: ncclAllGather"});
}

TEST_F(Wrong, OneGroupThatUsesMemoryTwice) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(0);
    nccl().group_start();
    at.all_reduce(data, data);
    at.all_reduce(data, data);
    nccl().group_end();
    at.settle();
    expect_violation({"two operations of one group"});
  });
}

TEST_F(Wrong, AReductionOfAnotherTypeOrCommunicatorOrTime) {
  const auto id = new_id();
  on_bare_ranks(1, [&](BareRank& at) {
    float* data = at.make(0);
    float scale = 2;
    ncclRedOp_t op{};
    nccl().red_op_create_pre_mul_sum(&op, &scale, ncclFloat16, ncclScalarHostImmediate, at.comm);
    const auto use = [&](ncclComm_t comm) {
      return nccl().all_reduce(data, data, 1, ncclFloat32, op, comm, at.stream);
    };
    EXPECT_EQ(use(at.comm), ncclInvalidArgument);
    expect_violation({"made for type"});
    const ncclComm_t second = at.make_comm(id);
    BareRank::settle(second);
    EXPECT_EQ(use(second), ncclInvalidArgument);
    expect_violation({"is not one of"});
    nccl().comm_abort(second);
    nccl().red_op_destroy(op, at.comm);
    EXPECT_EQ(use(at.comm), ncclInvalidArgument);
    expect_violation({"is not one of"});
  });
}

TEST_F(Wrong, AnIdThatServesTwiceAndOneOfNobody) {
  const auto id = new_id();
  on_bare_ranks(1, [&](BareRank& at) {
    const ncclComm_t second = at.make_comm(id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t third = nullptr;
    EXPECT_EQ(nccl().comm_init_rank_config(&third, 1, id, 0, &config), ncclInvalidUsage);
    expect_violation({"an id serves once"});
    ncclUniqueId none{};
    EXPECT_EQ(nccl().comm_init_rank_config(&third, 1, none, 0, &config), ncclInvalidArgument);
    expect_violation({"not from ncclGetUniqueId"});
    config.magic = 0;
    EXPECT_EQ(nccl().comm_init_rank_config(&third, 1, new_id(), 0, &config), ncclInvalidArgument);
    expect_violation({"NCCL_CONFIG_INITIALIZER"});
    BareRank::settle(second);
    nccl().comm_abort(second);
  });
}

TEST_F(Wrong, TwoRanksOnOneDevice) {
  const auto id = new_id();
  cuda().set_device(0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t first = nullptr;
  ncclComm_t second = nullptr;
  nccl().comm_init_rank_config(&first, 2, id, 0, &config);
  EXPECT_EQ(nccl().comm_init_rank_config(&second, 2, id, 1, &config), ncclInvalidUsage);
  expect_violation({"are both on device 0"});
  nccl().comm_abort(first);
}

TEST_F(Wrong, WhatIsLeftAtTheEnd) {
  cuda().set_device(0);
  void* data = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cuda().malloc_async(&data, 10, nullptr);
  cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
  cuda().event_create_with_flags(&event, cudaEventDisableTiming);
  check_nothing_is_left();
  expect_violation({"1 streams were never", "1 events were never", "1 blocks of 10 bytes"});
}

TEST_F(Wrong, AnErrorThatIsLeftInTheThread) {
  EXPECT_EQ(cuda().set_device(-1), cudaErrorInvalidDevice);
  check_nothing_is_left();
  expect_violation({"left with CUDA error"});
}

using WrongDeathTest = Wrong;

// A device has memory of its own.
TEST_F(WrongDeathTest, TheHostReadsMemoryOfADevice) {
  if (thread_sanitizer) GTEST_SKIP() << "a sanitizer's process does not fork well";
  on_bare_ranks(1, [](BareRank& at) {
    const volatile float* data = at.make(1);
    EXPECT_DEATH(
        {
          const float seen = *data;
          (void)seen;
        },
        "");
  });
}

class Planned : public Double {};

TEST_F(Planned, AnInitHangsUntilItIsAborted) {
  set_faults(1, {.init_hangs = true});
  const auto id = new_id();
  Meeting seen(2);
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
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    set_faults(0, {.fails = "ncclAllReduce", .with = ncclSystemError});
    EXPECT_EQ(at.all_reduce(data, data), ncclSystemError);
    EXPECT_EQ(at.all_reduce(data, data), ncclInProgress);
    at.settle();
  });
}

TEST_F(Planned, OperationsStayInProgress) {
  on_bare_ranks(1, [](BareRank& at) {
    float* data = at.make(1);
    set_faults(0, {.stays_in_progress = true});
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
