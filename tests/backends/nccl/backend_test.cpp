#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "backends/nccl/groups.hpp"
#include "support/store_over.hpp"

// The backend nccl on streams, and when NCCL or CUDA fail, over the double.

namespace tutti::test::nccl_double {
namespace {

using SteadyClock = std::chrono::steady_clock;

class Streams : public Double {};

TEST_F(Streams, ASynchronousVerbDoesNotBlockTheHost) {
  on_groups(2, [](const Member& at) {
    const TensorView data = at.make();
    bool quick = false;
    for (int attempt = 0; attempt < 4; ++attempt) {  // The first one connects.
      at.fill(data, 1, slow);
      at.group.barrier();
      const auto start = SteadyClock::now();
      at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
      quick = quick || (attempt > 0 && SteadyClock::now() - start < slow / 2);
      EXPECT_TRUE(at.holds(data, 2));
    }
    EXPECT_TRUE(quick);
    at.free(data);
  });
}

TEST_F(Streams, OrderLetsAnotherStreamReadAndFree) {
  on_groups(2, [](const Member& at) {
    const TensorView in = at.make();
    const TensorView out = at.make();
    at.fill(in, 1, at.rank == 0 ? slow : 0ms);
    Work work = at.group.all_reduce_async(in, out, ReduceOp::sum, {.stream = at.stream()});
    work.block_stream({at.other});
    EXPECT_EQ(at.read(out, at.other), std::vector<float>(Member::count, 2));
    at.group.memory().release(in.data, in.bytes(), {at.other});
    at.group.memory().release(out.data, out.bytes(), {at.other});
    work.wait();
  });
}

TEST_F(Streams, TheDefaultStreamIsAStream) {
  on_groups(2, [](const Member& at) {
    void* block = at.group.memory().allocate(400, {});
    const TensorView data{block, DType::f32, {100}, at.group.memory().device()};
    fill(nullptr, static_cast<float*>(block), 100, 1, slow);
    at.group.all_reduce(data);
    EXPECT_EQ(at.read(data, nullptr), std::vector<float>(100, 2));
    at.group.memory().release(block, 400, {});
    cuda().stream_synchronize(nullptr);
  });
}

TEST_F(Streams, TheCallersDeviceStaysWhatItWas) {
  on_groups(2, [](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    cuda().set_device(5);
    at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
    int device = -1;
    cuda().get_device(&device);
    EXPECT_EQ(device, 5);
    cuda().set_device(at.rank);
    EXPECT_TRUE(at.holds(data, 2));
    at.free(data);
  });
}

TEST_F(Streams, AScopeOfADeviceWithinAnotherOneCallsCudaOnlyForAnotherDevice) {
  using backend::cuda::DeviceScope;
  const auto current = [] {
    int device = -1;
    cuda().get_device(&device);
    return device;
  };
  const auto calls_for = [](int device) {
    return calls_in([&] { const DeviceScope scope(cuda(), device); }).size();
  };
  cuda().set_device(2);
  {
    const DeviceScope outer(cuda(), 3);
    EXPECT_EQ(calls_for(3), 0);
    {
      const DeviceScope other(cuda(), 4);
      EXPECT_EQ(current(), 4);
      EXPECT_EQ(calls_for(4), 0);
    }
    EXPECT_EQ(current(), 3);
    EXPECT_EQ(calls_for(3), 0);
  }
  EXPECT_EQ(current(), 2);
  EXPECT_EQ(calls_for(2), 1);
  take_devices_in_use();
  std::thread([&] {  // Has chosen no device, so the scope of device 1 leaves it there.
    const DeviceScope outer(cuda(), 0);
    { const DeviceScope other(cuda(), 1); }
    EXPECT_EQ(current(), 1);
    const DeviceScope again(cuda(), 0);
    EXPECT_EQ(current(), 0);
  })
      .join();
}

// A context costs memory on its device, and cannot be made where another process uses the device
// exclusively.
TEST_F(Streams, NoOtherDeviceIsTouchedForAThreadThatChoseNone) {
  const auto store = make_memory_store();
  take_devices_in_use();
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1})
    ranks.emplace_back([&, rank] {
      GroupOptions options;
      options.store = store;
      options.rank = rank;
      options.size = 2;
      options.logger = [](LogLevel, std::string_view) {};
      ProcessGroup group = ProcessGroup::create(
          options, backend::nccl::make_nccl({.store = make_prefix_store(store, "backend/"),
                                             .rank = rank,
                                             .size = 2,
                                             .name = "n",
                                             .args = {},
                                             .device = {DeviceType::cuda, rank + 3},
                                             .timeout = 10s,
                                             .logger = options.logger},
                                            apis()));
      Tensor data(group.memory(), {4}, DType::f32);
      group.memory().copy(data.data(), std::vector<float>(4, 1).data(), 16, {});
      group.all_reduce(data);
      group.barrier();
      Work work = group.all_reduce_async(data);
      std::thread([&] { work.wait(); }).join();
      std::thread([gone = std::move(group)] {}).join();
    });
  for (std::thread& rank : ranks) rank.join();
  check_nothing_is_left();
  EXPECT_EQ(take_devices_in_use(), (std::set<int>{3, 4}));
}

TEST_F(Streams, ASecondRankOfAGroupOnADeviceIsRefused) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    expect_error({Errc::unsupported, Errc::aborted, Errc::backend},
                 {"another rank of group 'n' uses cuda:2 in this process"}, [&] {
                   (void)backend::nccl::make_nccl({.store = store,
                                                   .rank = rank,
                                                   .size = 2,
                                                   .name = "n",
                                                   .args = {},
                                                   .device = {DeviceType::cuda, 2},
                                                   .timeout = 10s,
                                                   .logger = [](LogLevel, std::string_view) {}},
                                                  apis());
                 });
  });
}

TEST_F(Streams, RaggedRowsOfEverySizeArrive) {
  on_groups(3, [](const Member& at) {
    // Padded, and large enough for a broadcast per rank.
    for (const std::int64_t base : {1, 5, 200'000}) {
      const std::vector<std::int64_t> rows{base, 0, 3 * base};
      const std::int64_t total = 4 * base;
      const TensorView in =
          at.make(std::max<std::int64_t>(rows[static_cast<std::size_t>(at.rank)], 1));
      const TensorView out = at.make(total);
      at.fill(in, static_cast<float>(at.rank + 1));
      const TensorView mine{
          in.data, DType::f32, {rows[static_cast<std::size_t>(at.rank)]}, in.device};
      at.group.all_gather(mine, out, rows, {.stream = at.stream()});
      const auto got = at.read(out, at.compute);
      EXPECT_TRUE(std::all_of(got.begin(), got.begin() + base, [](float x) { return x == 1; }));
      EXPECT_TRUE(std::all_of(got.begin() + base, got.end(), [](float x) { return x == 3; }));
      at.free(in);
      at.free(out);
    }
  });
}

class Failing : public Double {
 protected:
  /// Every rank tries to make a group and has to fail within `limit`.
  static void expect_no_group(std::chrono::nanoseconds timeout, std::chrono::nanoseconds limit,
                              const std::vector<Errc>& codes) {
    const auto store = make_memory_store();
    on_threads(2, [&](int rank) {
      cuda().set_device(rank);
      const auto start = SteadyClock::now();
      expect_error(codes, {}, [&] { (void)make_backend(rank, 2, store, {.timeout = timeout}); });
      EXPECT_LT(SteadyClock::now() - start, limit);
      cuda().get_last_error();
    });
  }

  /// The actions of every rank of a group that `broken` breaks on rank 1.
  static void expect_all_fail(const Faults& faults, const std::vector<Errc>& codes,
                              std::chrono::nanoseconds limit) {
    RankBarrier barrier(2);
    on_groups(2,
              [&](const Member& at) {
                const TensorView data = at.make();
                at.fill(data, 1);
                at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
                at.group.barrier();
                barrier.wait();
                if (at.rank == 1) set_faults(1, faults);
                const auto start = SteadyClock::now();
                expect_error(codes, {}, [&] {
                  for (int i = 0; i < 2; ++i) {
                    Work work =
                        at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream()});
                    work.wait();
                  }
                });
                EXPECT_LT(SteadyClock::now() - start, limit);
                // It says so from now on.
                expect_error({Errc::aborted, Errc::backend, Errc::timeout, Errc::peer_lost}, {},
                             [&] { at.group.barrier(); });
                barrier.wait();
                if (at.rank == 1) set_faults(1, {});
                barrier.wait();
                at.free(data);
              },
              {.timeout = 2s});
  }
};

TEST_F(Failing, AnInitThatHangsEndsByTheDeadlineOnAllRanks) {
  for (const int device : {0, 1}) set_faults(device, {.init_hangs = true});
  expect_no_group(500ms, 5s, {Errc::timeout, Errc::aborted, Errc::backend, Errc::peer_lost});
}

TEST_F(Failing, AnInitThatFailsOnOneRankIsKnownToTheOther) {
  set_faults(1, {.fails = "ncclCommInitRankConfig", .with = ncclSystemError});
  expect_no_group(10s, 5s, {Errc::backend, Errc::aborted, Errc::peer_lost});
}

TEST_F(Failing, AnAsynchronousErrorOfOneRankEndsAll) {
  expect_all_fail({.async_error = ncclRemoteError},
                  {Errc::backend, Errc::peer_lost, Errc::aborted, Errc::timeout}, 5s);
}

TEST_F(Failing, OperationsThatStayInProgressEndByTheDeadline) {
  expect_all_fail({.stays_in_progress = true},
                  {Errc::timeout, Errc::peer_lost, Errc::aborted, Errc::backend}, 8s);
}

TEST_F(Failing, ACallThatNcclRefusesEndsTheGroup) {
  expect_all_fail({.fails = "ncclAllReduce", .with = ncclInternalError},
                  {Errc::backend, Errc::aborted, Errc::peer_lost, Errc::timeout}, 5s);
}

TEST_F(Failing, ABrokenDeviceIsNamedAndEndsAll) {
  expect_all_fail({.sticky = cudaErrorIllegalAddress},
                  {Errc::backend, Errc::aborted, Errc::peer_lost, Errc::timeout}, 5s);
}

TEST_F(Failing, OtherReductionsAreAnErrorWithinTwoSeconds) {
  for (const int device : {0, 1}) set_faults(device, {.mixes_reductions = true});
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    const auto call = [&](ReduceOp op) { at.group.all_reduce(data, op, {.stream = at.stream()}); };
    for (int i = 0; i < 3; ++i) call(ReduceOp::sum);
    call(at.rank == 0 ? ReduceOp::sum : ReduceOp::prod);
    for (int i = 0; i < 100; ++i) call(ReduceOp::sum);
    barrier.wait();
    const auto start = SteadyClock::now();
    expect_error({Errc::mismatch, Errc::aborted}, {"rank 0: ", "rank 1: ", "all_reduce #"}, [&] {
      while (SteadyClock::now() - start < 5s) {
        std::this_thread::sleep_for(10ms);
        call(ReduceOp::sum);
      }
    });
    EXPECT_LT(SteadyClock::now() - start, 2s);
    barrier.wait();
    at.free(data);
  });
}

// Calls whose ends are not queried, because an earlier one runs, have their own deadlines.
TEST_F(Failing, ADeadlineNamesItsCallAmongOthers) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    const auto call = [&](std::chrono::nanoseconds timeout) {
      return at.group.all_reduce_async(data, ReduceOp::sum,
                                       {.stream = at.stream(), .timeout = timeout});
    };
    for (int i = 0; i < 3; ++i) at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
    if (at.rank == 0) {
      Work third = call(8s);
      Work fourth = call(200ms);
      const std::string cause = "all_reduce #4 on group 'n': the deadline passed";
      expect_error(Errc::timeout, {cause, "missing: 1"}, [&] { fourth.wait(); });
      expect_error(Errc::aborted, {"first cause: ", cause}, [&] { third.wait(); });
    }
    barrier.wait();
    at.free(data);
  });
}

/// A store of processes in which the beats of a rank can end, as if it had stopped.
class MuteStore final : public StoreOver {
 public:
  explicit MuteStore(std::shared_ptr<Store> base, std::atomic<bool>& mute)
      : StoreOver(std::move(base)), mute_(mute) {}
  void set(std::string_view key, std::span<const std::byte> value) override {
    if (!mute_ || key.find("agreement/beat/") == std::string_view::npos) StoreOver::set(key, value);
  }

 private:
  std::atomic<bool>& mute_;
};

TEST_F(Failing, ARankThatDoesNotRespondIsNamedInTime) {
  std::atomic<bool> mute{false};
  RankBarrier barrier(2);
  on_members(
      2, [](int rank) { return rank; },
      [&](int rank, const std::shared_ptr<Store>& base) {
        static std::atomic<bool> never{false};
        return make_group(rank, 2, std::make_shared<MuteStore>(base, rank == 1 ? mute : never),
                          {.timeout = 60s, .dead_after = 1s});
      },
      [&](const Member& at) {
        const TensorView data = at.make();
        at.fill(data, 1);
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
        at.group.barrier();
        if (at.rank == 0) {  // A slow peer, for longer than a dead one is waited for.
          at.group.barrier();
        } else {
          std::this_thread::sleep_for(2s);
          at.group.barrier();
          mute = true;
        }
        barrier.wait();
        if (at.rank == 0) {
          const auto start = SteadyClock::now();
          const auto error = expect_error(Errc::peer_lost, {"rank 1 has not responded for"},
                                          [&] { at.group.barrier(); });
          EXPECT_EQ(error.where().rank, 1);
          EXPECT_LT(SteadyClock::now() - start, 2s * patience());
        }
        barrier.wait();
        at.free(data);
      });
}

// An abort that hangs longer than the backend's bound, and the error text.
TEST_F(Failing, SlowAnAbortThatHangsIsBounded) {
  RankBarrier barrier(2);
  on_groups(
      2,
      [&](const Member& at) {
        const TensorView data = at.make();
        at.fill(data, 1);
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
        barrier.wait();
        if (at.rank == 0) {
          set_faults(0, {.abort_hangs = true});
          const auto start = SteadyClock::now();
          expect_error({Errc::timeout, Errc::aborted, Errc::peer_lost}, {"ncclCommAbort"}, [&] {
            at.group
                .all_reduce_async(data, ReduceOp::sum, {.stream = at.stream(), .deadline = 200ms})
                .wait();
          });
          EXPECT_LT(SteadyClock::now() - start, 20s);
          set_faults(0, {});
        }
        barrier.wait();
        at.free(data);
      },
      {.timeout = 30s});
}

// The ranks exchange the colours through the store.
TEST_F(Failing, ASplitWithoutARankNamesItAtTheDeadlineAndMayBeRepeated) {
  on_groups(3, [](const Member& at) {
    if (at.rank != 1) {
      const Error late =
          expect_error(Errc::timeout, {"split on group 'n'", "the deadline passed; missing: 1"},
                       [&] { (void)at.group.split(0, 0, {.deadline = 50ms}); });
      EXPECT_EQ(late.where().missing, std::vector{1});
    }
    at.group.barrier();
    auto part = at.group.split(at.rank == 1 ? -1 : 0, at.rank);
    EXPECT_EQ(part.has_value(), at.rank != 1);
    if (part) part->barrier();
  });
}

// A rank that comes when the others have given up does not use the colours of these.
TEST_F(Failing, ASplitAfterWhoseDeadlineALateRankComesFailsOnAllRanks) {
  on_groups(3, [](const Member& at) {
    const auto split = [&](const std::string& why) {
      expect_error(Errc::timeout, {"split on group 'n'", why},
                   [&] { (void)at.group.split(at.rank, 0, {.deadline = 50ms}); });
    };
    if (at.rank != 1) split("missing: 1");
    at.group.barrier();
    if (at.rank == 1) split("all ranks have come, but some had given up before");
    at.group.barrier();
    auto part = at.group.split(0, at.rank);
    ASSERT_TRUE(part);
    EXPECT_EQ(part->size(), 3);
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
