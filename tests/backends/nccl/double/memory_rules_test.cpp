// The rules of memory, streams and arguments, each broken once by hand.

#include <vector>

#include "backends/nccl/double/rules.hpp"
#include "support/sanitizers.hpp"

namespace tutti::test::nccl_double {
namespace {

TEST_F(Wrong, AKernelThatDoesNotWaitForItsInput) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(0);
    cudaStream_t compute = nullptr;
    cuda().stream_create_with_flags(&compute, cudaStreamNonBlocking);
    fill(compute, data, count, 5);
    at.all_reduce(data, data);
    at.settle();
    cuda().stream_synchronize(compute);
    cuda().stream_destroy(compute);
  });
  expect_violation({"race: ncclAllReduce"});
}

TEST_F(Wrong, AReaderThatDoesNotWaitForTheKernel) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(0);
    float* seen = at.make(0);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    at.all_reduce(data, data);
    at.settle();
    copy(other, seen, data, count);
    cuda().stream_synchronize(other);
    cuda().stream_destroy(other);
  });
  expect_violation({"race: a kernel that copies"});
}

TEST_F(Wrong, AFreeThatDoesNotWaitForTheKernel) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(0);
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    at.all_reduce(data, data);
    at.settle();
    cuda().free_async(data, other);
    at.forget(data);
    cuda().stream_synchronize(other);
    cuda().stream_destroy(other);
  });
  expect_violation({"race: cudaFreeAsync"});
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
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(0);
    cuda().memset_async(data, 0, bytes + 1, at.stream);
    nccl().broadcast(data, data, count + 1, ncclFloat32, 0, at.comm, at.stream);
    at.settle();
  });
  expect_violation({"of a block of"});
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
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(0);
    nccl().group_start();
    at.all_reduce(data, data);
    at.all_reduce(data, data);
    nccl().group_end();
    at.settle();
  });
  expect_violation({"two operations of one group"});
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

TEST_F(Wrong, AnIdThatServesTwiceAndOneOfNoRank) {
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

}  // namespace
}  // namespace tutti::test::nccl_double
