// The rules of NCCL, each broken once by hand.

#include <thread>
#include <utility>

#include "backends/nccl/double/rules.hpp"

namespace tutti::test::nccl_double {
namespace {

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
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    at.all_reduce(data, data);
    EXPECT_EQ(at.all_reduce(data, data), ncclInvalidArgument);
    at.settle();
  });
  expect_violation({"still ncclInProgress"});
}

TEST_F(Wrong, WorkOnAStreamThatNcclIsStillEnqueuingOn) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    cudaEvent_t event = nullptr;
    cuda().event_create_with_flags(&event, cudaEventDisableTiming);
    at.all_reduce(data, data);
    cuda().event_record(event, at.stream);
    at.settle();
    cuda().event_destroy(event);
  });
  expect_violation({"still putting calls on it"});
}

TEST_F(Wrong, ASecondCommunicatorOfTheDeviceWhileTheFirstIsInProgress) {
  const auto id = new_id();
  on_bare_ranks(2, [&](BareRank& at) {
    float* data = at.make(1);
    const ncclComm_t second = at.make_comm(id);
    BareRank::settle(second);
    at.all_reduce(data, data);
    nccl().all_reduce(data, data, count, ncclFloat32, ncclSum, second, at.stream);
    at.settle();
    BareRank::settle(second);
    nccl().comm_abort(second);
  });
  expect_violation({"are still ncclInProgress"});
}

TEST_F(Wrong, TwoThreadsWithCallsOfOneDevice) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    float* other = at.make(1);
    nccl().group_start();
    at.all_reduce(data, data);
    std::thread([&] {
      cuda().set_device(at.rank);
      at.all_reduce(other, other);
    }).join();
    at.settle();
    nccl().group_end();
    at.settle();
  });
  expect_violation({"another thread has an open group"});
}

TEST_F(Wrong, AnAbortWhileAnotherThreadIsInAGroup) {
  on_bare_ranks(2, [](BareRank& at) {
    float* data = at.make(1);
    nccl().group_start();
    at.all_reduce(data, data);
    std::thread([&] { nccl().comm_abort(std::exchange(at.comm, nullptr)); }).join();
    nccl().group_end();
  });
  expect_violation({"another thread is within a group", "was ended while a group had calls on it"});
}

TEST_F(Wrong, AnOrderOfTwoCommunicatorsThatDiffersBetweenRanks) {
  const auto id = new_id();
  RankBarrier launched(2);
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

// A backend with a communicator per direction relies on more than NCCL promises.
TEST_F(Wrong, MessagesOfTwoCommunicatorsThatCrossUnlessTheyRunSideBySide) {
  for (const bool side_by_side : {false, true}) {
    set_messages_side_by_side(side_by_side);
    const auto id = new_id();
    RankBarrier launched(2);
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

}  // namespace
}  // namespace tutti::test::nccl_double
