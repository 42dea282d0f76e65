#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "torch/c10d_backend.hpp"
#include "torch/c10d_store.hpp"

// The store over one of c10d, and futures of calls on the host.

namespace tutti::test {
namespace {

std::atomic<bool> threads_fail = false;

}  // namespace
}  // namespace tutti::test

/// Replaces the C library's function, which std::thread calls.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return tutti::test::threads_fail ? EAGAIN : real(thread, attributes, body, argument);
}

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Value = std::vector<std::uint8_t>;

/// A peer erases a key as soon as this rank has seen it.
class ErasedWhenSeen final : public ::c10d::HashStore {
 public:
  ErasedWhenSeen() { setTimeout(1s); }
  bool check(const std::vector<std::string>& keys) override {
    const bool seen = HashStore::check(keys);
    for (const auto& key : keys) deleteKey(key);
    return seen;
  }
};

template <typename Thrown>
class Fails final : public ::c10d::HashStore {
 public:
  std::int64_t add(const std::string&, std::int64_t) override { throw Thrown(); }
};

std::string text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(StoreOverC10d, OneStepReadsAndCompares) {
  const auto store = c10d_door::make_store(c10::make_intrusive<ErasedWhenSeen>());
  const auto compare_set = [&](const char* expected, const char* desired) {
    const auto bytes = [](std::string_view of) { return std::as_bytes(std::span(of)); };
    return text(store->compare_set("key", bytes(expected), bytes(desired)));
  };
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  EXPECT_EQ(compare_set("a", "b"), "");
  EXPECT_EQ(compare_set("a", "a"), "");
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  store->set("key", "a");
  EXPECT_EQ(text(store->try_get("key").value()), "a");
  EXPECT_EQ(compare_set("a", "a"), "a");
  EXPECT_EQ(compare_set("a", "b"), "b");
  EXPECT_EQ(compare_set("a", "c"), "b");
  EXPECT_EQ(text(store->get("key", Deadline::after({}))), "b");
}

TEST(StoreOverC10d, LackOfMemoryIsNotALostPeer) {
  const auto add = [](const c10::intrusive_ptr<::c10d::Store>& store) {
    c10d_door::make_store(store)->add("key", 1);
  };
  expect_error(Errc::resource_exhausted, {"out of memory"},
               [&] { add(c10::make_intrusive<Fails<std::bad_alloc>>()); });
  expect_error(Errc::peer_lost, {"has failed"},
               [&] { add(c10::make_intrusive<Fails<std::exception>>()); });
}

/// c10d's client writes a stack to stderr if its server does not answer.
TEST(StoreOverC10d, AServerThatIsGoneIsNotAsked) {
  ::c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  auto server = c10::make_intrusive<::c10d::TCPStore>("127.0.0.1", options);
  options.isServer = false;
  options.port = server->getPort();
  const auto store = c10d_door::make_store(c10::make_intrusive<::c10d::PrefixStore>(
      "p", c10::make_intrusive<::c10d::TCPStore>("127.0.0.1", options)));
  store->set("key", "a");
  server.reset();
  std::this_thread::sleep_for(150ms);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    expect_error(Errc::peer_lost, {"its server is gone"}, [&] { store->try_get("key"); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(C10dFuture, CompletesWithAnErrorIfItsThreadCannotStart) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::promise<void> end;
  const auto ended = end.get_future().share();
  std::atomic<int> added{0};  // Callbacks. Rank 1 calls after that, so that none runs on rank 0.
  on_threads(2, [&](int rank) {
    const auto backend = c10d_door::make_backend(
        {.store = store, .rank = rank, .size = 2, .timeout = 10s, .group = "g", .backend = "gloo"});
    const auto sum = [&] {
      std::vector<at::Tensor> data{at::full({1}, 1)};
      return backend->allreduce(data, {});
    };
    sum()->wait();
    // Callbacks keep the threads busy that exist, then none can start.
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int i = 0; i < 8; ++i) {
      while (rank == 1 && added <= i) std::this_thread::yield();
      const auto work = sum();
      if (rank == 0) {
        threads_fail = i > 0;
        futures.push_back(work->getFuture());
        futures.back()->addCallback([ended](c10::ivalue::Future& done) {
          if (!done.hasError()) ended.wait();
        });
        ++added;
        const auto limit = Deadline::after(5s);
        while (!futures.back()->completed() && !limit.expired()) std::this_thread::yield();
        EXPECT_TRUE(futures.back()->completed()) << i;
      }
      work->wait();
    }
    if (rank == 0) {
      threads_fail = false;
      end.set_value();
      ASSERT_TRUE(futures.back()->hasError());
      EXPECT_NE(futures.back()->tryRetrieveErrorMessage().find("no thread completes"),
                std::string::npos);
    }
    backend->shutdown();
  });
}

}  // namespace
}  // namespace tutti::test
