#include <atomic>
#include <thread>

#include "backends/nccl/staged_groups.hpp"
#include "cuda/pinned_pool.hpp"
#include "cuda/stage.hpp"
#include "group/core.hpp"
#include "support/sanitizers.hpp"

// Arrays on devices over a backend of host memory, with the double of CUDA.

namespace tutti::backend::local {
extern const BackendEntry entry;
}

namespace tutti::test::nccl_double {
namespace {

using backend::cuda::CudaApi;
using backend::cuda::Gpu;
using backend::cuda::PinnedPool;

class Staged : public Double {
 protected:
  struct Setup {
    std::chrono::nanoseconds timeout = 10s;
    int devices = 1;  ///< Rank r is on device first + r % devices.
    int first = 0;
    const CudaApi* api = &cuda();
  };

  static ProcessGroup make(int rank, int size, const std::shared_ptr<Store>& store,
                           const Setup& setup) {
    return make_staged_group(backend::local::entry, rank, size, setup.first + rank % setup.devices,
                             store, setup.timeout, *setup.api);
  }

  static void on_staged(int size, const std::function<void(const Member& at)>& body,
                        const Setup& setup) {
    on_members(
        size, [&](int rank) { return setup.first + rank % setup.devices; },
        [&](int rank, const std::shared_ptr<Store>& store) {
          return make(rank, size, store, setup);
        },
        body);
  }
  static void on_staged(int size, const std::function<void(const Member& at)>& body) {
    on_staged(size, body, Setup());
  }
};

// The pool ends with the last group on its device, but not before its Tensors.
TEST_F(Staged, TensorsOfItsMemoryMayOutliveTheGroup) {
  Tensor pinned;
  Tensor device;
  std::weak_ptr<const void> pool;
  on_staged(1, [&](const Member& at) {
    auto& staging = internal::Core::of(at.group).staging_memory();
    pool = staging.lifetime();
    pinned = Tensor(staging, {1000}, DType::f32);
    device = Tensor(at.group.memory(), {1000}, DType::f32);
  });
  ASSERT_FALSE(pool.expired());
  static_cast<float*>(pinned.data())[999] = 7;
  EXPECT_EQ(pinned.device(), Device());
  pinned = Tensor();
  EXPECT_TRUE(pool.expired());
  device = Tensor();
}

TEST_F(Staged, RanksOfOneDeviceSeeInputsOfSlowKernels) {
  on_staged(3, [](const Member& at) {
    EXPECT_EQ(at.group.memory().device(), (Device{DeviceType::cuda, 0}));
    const TensorView in = at.make();
    const TensorView out = at.make();
    at.fill(in, static_cast<float>(at.rank + 1), slow);
    at.group.all_reduce(in, out, ReduceOp::sum, {.stream = at.stream()});
    // It has ended on the host, so any stream may use it.
    EXPECT_EQ(at.read(out, at.other), std::vector<float>(Member::count, 6));
    at.fill(out, static_cast<float>(at.rank));
    at.group.broadcast(out, 2, {.stream = at.stream()});
    EXPECT_TRUE(at.holds(out, 2));
    at.free(in);
    at.free(out);
  });
}

TEST_F(Staged, AnAsyncCallIsBehindWhatItsStreamHadToDoAndBeforeWhatIsOrderedBehindIt) {
  on_staged(2, [](const Member& at) {
    const TensorView in = at.make();
    const TensorView out = at.make();
    at.fill(in, 1, slow);
    Work work = at.group.all_reduce_async(in, out, ReduceOp::sum, {.stream = at.stream()});
    work.block_stream({at.other});
    fill(at.other, static_cast<float*>(in.data), Member::count, 100);
    EXPECT_EQ(at.read(out, at.other), std::vector<float>(Member::count, 2));
    work.wait();
    at.group.memory().release(in.data, in.bytes(), {at.other});
    at.free(out);
  });
}

TEST_F(Staged, MessagesOfAStreamAreNotBehindThoseOfAnother) {
  on_staged(2, [](const Member& at) {
    const TensorView late = at.make();
    const TensorView early = at.make();
    cuda().stream_synchronize(at.compute);
    const int peer = 1 - at.rank;
    at.fill(late, 1, slow);
    fill(at.other, static_cast<float*>(early.data), Member::count, 2);
    if (at.rank == 0) {
      Work first = at.group.send_async(late, peer, 0, {.stream = at.stream()});
      at.group.send(early, peer, 1, {.stream = {at.other}});
      first.wait();
    } else {
      at.group.recv(early, peer, 1, {.stream = {at.other}});
      EXPECT_EQ(at.read(early, at.other), std::vector<float>(Member::count, 2));
      at.group.recv(late, peer, 0, {.stream = at.stream()});
      EXPECT_TRUE(at.holds(late, 1));
    }
    at.free(late);
    at.group.memory().release(early.data, early.bytes(), {at.other});
  });
}

TEST_F(Staged, TheCallersDeviceStaysWhatItWas) {
  on_staged(2, [](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    cuda().set_device(5);
    at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
    int device = -1;
    cuda().get_device(&device);
    EXPECT_EQ(device, 5);
    cuda().set_device(0);
    EXPECT_TRUE(at.holds(data, 2));
    at.free(data);
  });
}

TEST_F(Staged, NoOtherDeviceIsTouchedForAThreadThatChoseNone) {
  const auto store = make_memory_store();
  take_devices_in_use();
  on_threads(2, [&](int rank) {
    Setup setup;
    setup.first = 3;
    ProcessGroup group = make(rank, 2, store, setup);
    Tensor data(group.memory(), {4}, DType::f32);
    Tensor letter(group.memory(), {4}, DType::f32);
    group.memory().copy(letter.data(), std::vector<float>(4, 1).data(), 16, {});
    Work work = group.all_reduce_async(letter, data);
    Work message = rank == 0 ? group.send_async(letter, 1) : group.recv_async(letter, 0);
    std::thread([&] { work.wait(); }).join();
    message.wait();
    std::thread([gone = std::move(group)] {}).join();
  });
  check_nothing_is_left();
  EXPECT_EQ(take_devices_in_use(), (std::set<int>{3}));
}

TEST_F(Staged, ACaptureInGlobalModeIsNotDisturbed) {
  RankBarrier barrier(2);
  on_staged(2, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1, 5ms);
    barrier.wait();
    EXPECT_EQ(begin_capture(at.other, cudaStreamCaptureModeGlobal), cudaSuccess);
    at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
    at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream()}).wait();
    if (at.rank == 0)
      at.group.send(data, 1, 0, {.stream = at.stream()});
    else
      at.group.recv(data, 0, 0, {.stream = at.stream()});
    barrier.wait();
    Graph graph;
    EXPECT_EQ(end_capture(at.other, &graph), cudaSuccess);
    barrier.wait();
    EXPECT_TRUE(at.holds(data, 4));
    at.free(data);
    barrier.wait();
  });
}

TEST_F(Staged, ACallOnACapturingStreamIsRefusedAndTheGroupGoesOn) {
  on_staged(2, [](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    EXPECT_EQ(begin_capture(at.compute, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    expect_error(Errc::unsupported, {"graph"},
                 [&] { at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()}); });
    Graph graph;
    EXPECT_EQ(end_capture(at.compute, &graph), cudaSuccess);
    at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
    EXPECT_TRUE(at.holds(data, 2));
    at.free(data);
  });
}

TEST_F(Staged, ADeadlineHoldsForTheStreamToo) {
  on_staged(2, [](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1, at.rank == 0 ? 300ms : 0ms);
    const auto limit = Deadline::after(at.rank == 0 ? 50ms : 10s);
    Work work =
        at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream(), .deadline = limit});
    if (at.rank == 0) {
      const auto error =
          expect_error(Errc::timeout, {"stream", "all_reduce"}, [&] { work.wait(); });
      EXPECT_EQ(error.where().seq, 0);
      EXPECT_EQ(error.where().group, "s");
    } else {
      expect_error(Errc::aborted, {"stream"}, [&] { work.wait(); });
    }
    expect_error(Errc::aborted, {"stream"}, [&] { at.group.barrier(); });
    at.free(data);
  });
}

TEST_F(Staged, ABrokenDeviceIsNamedAndEndsAll) {
  RankBarrier barrier(2);
  on_staged(2,
            [&](const Member& at) {
              const TensorView data = at.make();
              at.fill(data, 1);
              at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
              barrier.wait();
              if (at.rank == 1) set_faults(1, {.sticky = cudaErrorIllegalAddress});
              if (at.rank == 1)
                expect_error(Errc::backend, {"IllegalAddress", "restart"}, [&] {
                  at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
                });
              else
                expect_error({Errc::aborted, Errc::backend, Errc::mismatch}, {}, [&] {
                  at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
                });
              barrier.wait();
              expect_error(Errc::aborted, {"IllegalAddress"}, [&] { at.group.barrier(); });
              barrier.wait();
              if (at.rank == 1) set_faults(1, {});
              barrier.wait();
              at.free(data);
            },
            {.devices = 2});
}

TEST_F(Staged, WithoutPinnedMemoryACallFailsOnAllRanks) {
  RankBarrier barrier(2);
  on_staged(2,
            [&](const Member& at) {
              const TensorView data = at.make(100'000);
              at.fill(data, 1);
              if (at.rank == 1) set_faults(1, {.pinned_room = 5000});
              barrier.wait();
              const auto call = [&] {
                at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
              };
              if (at.rank == 1)
                expect_error(Errc::resource_exhausted, {"pinned", "cudaHostAlloc"}, call);
              else
                expect_error({Errc::aborted, Errc::mismatch, Errc::resource_exhausted}, {}, call);
              barrier.wait();
              at.free(data);
            },
            {.devices = 2});
}

TEST_F(Staged, AbortEndsCallsAndMessagesThatWaitForTheirStream) {
  RankBarrier barrier(2);
  on_staged(2, [&](const Member& at) {
    const TensorView data = at.make();
    const TensorView letter = at.make();
    at.fill(data, 1, reduced() ? 5s : 1s);
    const CallOptions options{.stream = at.stream()};
    Work work = at.group.all_reduce_async(data, ReduceOp::sum, options);
    Work message = at.rank == 0 ? at.group.send_async(letter, 1, 0, options)
                                : at.group.recv_async(letter, 0, 0, options);
    barrier.wait();
    if (at.rank == 1) at.group.abort("enough");
    expect_error(Errc::aborted, {"enough"}, [&] { message.wait(); });
    expect_error(Errc::aborted, {"enough"}, [&] { work.wait(); });
    auto end = std::make_shared<Gpu>(cuda(), 0)->event();
    end.record(at.compute);
    EXPECT_FALSE(end.done()) << "they waited for the stream";
    at.free(data);
    at.free(letter);
  });
}

class Pinned : public Double {};

TEST_F(Pinned, MemoryIsUsedAgainAndKeptUpToTheBound) {
  constexpr std::size_t kib = 1024;
  const auto gpu = std::make_shared<Gpu>(cuda(), 0);
  {
    const auto pool = std::make_shared<PinnedPool>(gpu, 64 * kib);
    { const auto one = pool->take(32 * kib); }
    const int before = calls("cudaHostAlloc");
    for (int i = 0; i < 3; ++i) {
      const auto again = pool->take(30 * kib);
      EXPECT_NE(again.data(), nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(again.data()) % 64, 0U);
    }
    EXPECT_EQ(calls("cudaHostAlloc"), before) << "what came back was not used";
    {
      const auto a = pool->take(40 * kib);
      const auto b = pool->take(40 * kib);
      const auto c = pool->take(200 * kib);
      EXPECT_NE(a.data(), b.data());
      EXPECT_GE(pinned_bytes(), 280 * kib);
    }
    EXPECT_LE(pinned_bytes(), 64 * kib);
    { const auto small = pool->take(1); }
    EXPECT_LE(pinned_bytes(), 64 * kib);
  }
  EXPECT_EQ(pinned_bytes(), 0U);
}

TEST_F(Pinned, MemoryThatACopyUsesIsNotReused) {
  const auto gpu = std::make_shared<Gpu>(cuda(), 0);
  const auto pool = std::make_shared<PinnedPool>(gpu);
  cuda().set_device(0);
  cudaStream_t stream = nullptr;
  cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
  void* array = nullptr;
  cuda().malloc_async(&array, 4000, stream);
  fill(stream, static_cast<float*>(array), 1000, 7, slow);
  const std::byte* first = nullptr;
  {
    auto block = pool->take(4000);
    first = block.data();
    cuda().memcpy_async(block.data(), array, 4000, cudaMemcpyDeviceToHost, stream);
    block.busy_on(*gpu, stream);
  }
  {
    const auto other = pool->take(4000);
    EXPECT_NE(other.data(), first);
  }
  cuda().free_async(array, stream);
  cuda().stream_synchronize(stream);
  const auto a = pool->take(4000);
  const auto b = pool->take(4000);
  EXPECT_TRUE(a.data() == first || b.data() == first);
  cuda().stream_destroy(stream);
}

TEST_F(Pinned, MemoryOfACopyWhoseEndIsNotKnownIsNotReused) {
  static void* lost = nullptr;
  CudaApi mutated = cuda();
  mutated.host_alloc = [](void** data, std::size_t bytes, unsigned int flags) {
    const auto code = cuda().host_alloc(data, bytes, flags);
    if (lost == nullptr) lost = *data;
    return code;
  };
  mutated.event_record = [](cudaEvent_t, cudaStream_t) { return cudaErrorUnknown; };
  const auto gpu = std::make_shared<Gpu>(mutated, 0);
  const auto stream = std::make_shared<backend::cuda::CudaStream>(gpu);
  void* array = nullptr;
  cuda().malloc_async(&array, 4000, stream->get());
  fill(stream->get(), static_cast<float*>(array), 1000, 7, slow);
  const TensorView view{array, DType::f32, {1000}, {DeviceType::cuda, 0}};
  const Op op{.kind = Operation::all_reduce, .in = view, .out = view};
  {
    const auto pool = std::make_shared<PinnedPool>(gpu);
    expect_error(Errc::backend, {"cudaEventRecord"}, [&] {
      const backend::cuda::Stage stage({gpu, pool, stream, 0}, op);
    });
    EXPECT_NE(pool->take(4000).data(), static_cast<std::byte*>(lost));
  }
  cuda().free_async(array, stream->get());
  cuda().stream_synchronize(stream->get());
  EXPECT_EQ(pinned_bytes(), 4096U);
  cuda().free_host(lost);
}

TEST_F(Pinned, WhatIsIdleGoesBackBeforeMemoryRunsOut) {
  const auto pool = std::make_shared<PinnedPool>(std::make_shared<Gpu>(cuda(), 0));
  set_faults(0, {.pinned_room = 10 * 4096});
  { const auto idle = pool->take(8 * 4096); }
  { const auto large = pool->take(10 * 4096); }
  expect_error(Errc::resource_exhausted, {"pinned"}, [&] { (void)pool->take(11 * 4096); });
  EXPECT_EQ(cuda().get_last_error(), cudaSuccess);
}

}  // namespace
}  // namespace tutti::test::nccl_double
