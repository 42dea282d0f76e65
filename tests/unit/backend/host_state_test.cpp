#include "backend/host_state.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/work_state.hpp>

#include "support/errors.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using test::expect_error;

std::exception_ptr an_error(const std::string& message) {
  return std::make_exception_ptr(Error(Errc::peer_lost, message));
}

std::string text_of(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

class HostStateTest : public testing::Test {
 protected:
  ~HostStateTest() override { queue->stop(); }

  const std::shared_ptr<CallQueue> queue = std::make_shared<CallQueue>();
  const std::shared_ptr<HostState> state = std::make_shared<HostState>(queue);
};

TEST_F(HostStateTest, IsNotDoneUntilItIsFinished) {
  EXPECT_FALSE(state->done());
  EXPECT_EQ(state->error(), nullptr);
  EXPECT_FALSE(state->wait_until(0s));
  EXPECT_FALSE(state->wait_until(-1s));
  state->finish(nullptr);
  EXPECT_TRUE(state->done());
  EXPECT_EQ(state->error(), nullptr);
  EXPECT_TRUE(state->wait_until(0s));
  EXPECT_TRUE(state->wait_until(Deadline::none()));
}

TEST_F(HostStateTest, WaitUntilGivesUpAtItsDeadlineAndNotBefore) {
  const auto before = Deadline::Clock::now();
  EXPECT_FALSE(state->wait_until(30ms));
  const auto took = Deadline::Clock::now() - before;
  EXPECT_GE(took, 30ms);
  EXPECT_LT(took, 5s);
}

TEST_F(HostStateTest, FinishWakesEveryWaiter) {
  std::atomic<int> woken = 0;
  std::vector<std::thread> threads;
  for (const Deadline& deadline : {Deadline(20s), Deadline::none(), Deadline()})
    threads.emplace_back([&, deadline] {
      if (state->wait_until(deadline)) ++woken;
    });
  threads.emplace_back([&] {
    state->block_stream({});
    ++woken;
  });
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(woken, 0);
  state->finish(nullptr);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(woken, 4);
}

TEST_F(HostStateTest, TheFirstFinishCounts) {
  state->finish(an_error("the first"));
  state->finish(an_error("the second"));
  state->finish(nullptr);
  EXPECT_EQ(text_of(state->error()), "the first");
}

TEST_F(HostStateTest, OneOfManyThreadsFinishesIt) {
  for (int round = 0; round < 100; ++round) {
    const auto shared = std::make_shared<HostState>(queue);
    std::atomic<int> ran = 0;
    const auto after = shared->then([&] { ++ran; });
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back([&] { shared->finish(nullptr); });
    for (auto& thread : threads) thread.join();
    ASSERT_TRUE(after->wait_until(20s));
    ASSERT_EQ(ran, 1);
  }
}

TEST_F(HostStateTest, ThenOfADoneStateRunsOnTheWorkerToo) {
  state->finish(nullptr);
  std::thread::id where;
  const auto after = state->then([&] { where = std::this_thread::get_id(); });
  ASSERT_TRUE(after->wait_until(20s));
  EXPECT_NE(where, std::this_thread::get_id());
}

// A continuation may own the Work of the next call, and must not outlive its run.
TEST_F(HostStateTest, AContinuationLetsGoOfWhatItCaptured) {
  const auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = captured;
  const auto after = state->then([held = std::shared_ptr<int>(captured)] { (void)held; });
  EXPECT_EQ(watch.use_count(), 2);
  state->finish(nullptr);
  ASSERT_TRUE(after->wait_until(20s));
  EXPECT_EQ(watch.use_count(), 1);
}

TEST_F(HostStateTest, AContinuationBehindTheEndOfItsGroupIsDropped) {
  bool ran = false;
  const auto after = state->then([&] { ran = true; });
  queue->stop();
  state->finish(nullptr);
  ASSERT_TRUE(after->done());
  EXPECT_FALSE(ran);
  expect_error(Errc::aborted, {"destroyed"}, [&] { std::rethrow_exception(after->error()); });
}

// A pool that uses a thread key fails after 1024 of them, and every group of every rank has a pool.
TEST(HostStatePool, ThereMayBeThousands) {
  std::vector<std::unique_ptr<Pool>> pools;
  for (int i = 0; i < 3000; ++i) {
    pools.push_back(std::make_unique<Pool>());
    void* data = pools.back()->allocate(100);
    pools.back()->deallocate(data, 100);
  }
}

TEST(HostStatePool, IsSharedByThreads) {
  Pool pool;
  std::vector<std::thread> threads;
  std::atomic<int> mixed = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&pool, &mixed, t] {
      for (int i = 0; i < 2000; ++i) {
        auto* data = static_cast<unsigned char*>(pool.allocate(64));
        std::fill_n(data, 64, static_cast<unsigned char>(t));
        if (!std::all_of(data, data + 64, [t](unsigned char c) { return c == t; })) ++mixed;
        pool.deallocate(data, 64);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
}

TEST(HostStatePool, AStateMayOutliveItsPoolsOwner) {
  auto queue = std::make_shared<CallQueue>();
  auto pool = std::make_shared<Pool>();
  const auto state = std::allocate_shared<HostState>(PoolAllocator<HostState>(pool), queue);
  const std::weak_ptr<Pool> watch = pool;
  pool.reset();
  EXPECT_FALSE(watch.expired());
  state->finish(nullptr);
  EXPECT_TRUE(state->done());
  queue->stop();
}

}  // namespace
}  // namespace tutti::internal
