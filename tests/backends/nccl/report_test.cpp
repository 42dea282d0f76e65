#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <thread>

#include "backends/nccl/groups.hpp"
#include "support/store_over.hpp"

// Failures of a call or a group that ranks report through the store, and the cost and delay of the
// store.

namespace tutti::test::nccl_double {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// The next thread that this one starts fails.
thread_local bool next_thread_fails = false;

}  // namespace
}  // namespace tutti::test::nccl_double

/// Of the ThreadSanitizer that clang links into the program.
extern "C" [[gnu::weak]] decltype(::pthread_create) __interceptor_pthread_create;

/// Replaces the C library's function, which std::thread calls.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  if (std::exchange(tutti::test::nccl_double::next_thread_fails, false)) return EAGAIN;
  static const auto next =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  const auto real = __interceptor_pthread_create ? &__interceptor_pthread_create : next;
  return real(thread, attributes, body, argument);
}

namespace tutti::test::nccl_double {
namespace {

/// A store in memory that can stop answering requests for some time, as a server may; get() keeps
/// its deadline nevertheless.
class WatchedStore final : public StoreOver {
 public:
  std::atomic<SteadyClock::time_point> silent_until{SteadyClock::time_point{}};

  WatchedStore() : StoreOver(make_memory_store()) {}
  std::optional<Bytes> try_get(std::string_view key) override {
    std::this_thread::sleep_until(silent_until.load());
    return StoreOver::try_get(key);
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    if (SteadyClock::now() >= silent_until.load()) return StoreOver::get(key, deadline);
    std::this_thread::sleep_until(
        std::min<SteadyClock::time_point>(silent_until.load(), deadline.time()));
    throw Error(Errc::timeout, "the store does not answer");
  }
};

class Reports : public Double {
 protected:
  static void on_watched_groups(const std::shared_ptr<WatchedStore>& store,
                                const std::function<void(const Member& at)>& body) {
    on_members(
        2, [](int rank) { return rank; },
        [&](int rank, const std::shared_ptr<Store>&) { return make_group(rank, 2, store, {}); },
        body);
  }
};

TEST_F(Reports, PeersHearOfACallThatACaptureRefuses) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const auto start = SteadyClock::now();
    if (at.rank == 0) {
      EXPECT_EQ(begin_capture(at.compute, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      expect_error(Errc::unsupported, {"barrier cannot be captured"},
                   [&] { at.group.barrier({.stream = at.stream()}); });
      Graph graph;
      EXPECT_EQ(end_capture(at.compute, &graph), cudaSuccess);
      barrier.wait();
    }
    expect_error({Errc::mismatch, Errc::aborted},
                 {"rank 0 refused barrier #0", "barrier cannot be captured"},
                 [&] { at.group.barrier(); });
    EXPECT_LT(SteadyClock::now() - start, 5s);
    if (at.rank == 1) barrier.wait();
  });
}

TEST_F(Reports, PeersHearOfAGroupWhoseThreadCannotStart) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    cuda().set_device(rank);
    const auto start = SteadyClock::now();
    expect_error({Errc::resource_exhausted, Errc::aborted}, {"cannot start the group's thread"},
                 [&] {
                   next_thread_fails = rank == 0;
                   auto group = make_group(rank, 2, store, {});
                   group.barrier();
                 });
    next_thread_fails = false;
    EXPECT_LT(SteadyClock::now() - start, 5s);
  });
}

TEST_F(Reports, ASilentStoreDoesNotHoldTheThread) {
  const auto store = std::make_shared<WatchedStore>();
  on_watched_groups(store, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    at.group.barrier();
    const auto start = SteadyClock::now();
    store->silent_until = start + 6s;
    if (at.rank == 1) std::this_thread::sleep_for(300ms);  // Rank 0 polls meanwhile.
    std::atomic<bool> ran{false};
    Work work = at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream()}).then([&] {
      ran = true;
    });
    while (!ran && SteadyClock::now() < start + 8s) std::this_thread::sleep_for(1ms);
    EXPECT_LT(SteadyClock::now() - start, 3s);
    work.wait();
    store->silent_until = start;
    at.free(data);
  });
}

TEST_F(Reports, ASilentStoreDoesNotDelayADeadline) {
  const auto store = std::make_shared<WatchedStore>();
  RankBarrier barrier(2);
  on_watched_groups(store, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    at.group.barrier();
    barrier.wait();
    if (at.rank == 0) {
      const auto start = SteadyClock::now();
      store->silent_until = start + 6s;
      expect_error(Errc::timeout, {"all_reduce #1", "the deadline passed"}, [&] {
        at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream(), .deadline = 300ms})
            .wait();
      });
      EXPECT_LT(SteadyClock::now() - start, 3s);
      store->silent_until = start;
    }
    barrier.wait();
    expect_error({Errc::timeout, Errc::aborted}, {"the deadline passed"},
                 [&] { at.group.barrier(); });
    at.free(data);
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
