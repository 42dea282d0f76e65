// A group that fails once, with one cause on all ranks.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store.hpp>

#include "backend/failing_group.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

class Probe final : public internal::FailingGroup {
 public:
  Probe(const std::shared_ptr<Store>& store, int rank) : FailingGroup(store, rank, 2) {}
  std::atomic<int> stops{0};
  std::vector<std::string> causes{};

 private:
  void stop(const Error&) noexcept override {
    ++stops;
    EXPECT_FALSE(is_up());
    EXPECT_FALSE(is_broken());
    // A peer that notices the stop finds the error in the store.
    EXPECT_TRUE(agreement().cause({}));
  }
  void on_broken(const Error& cause) noexcept override { causes.push_back(cause.message()); }
};

TEST(FailingGroup, FailsOnceWhicheverThreadReportsFirst) {
  Probe group(make_memory_store(), 0);
  EXPECT_TRUE(group.is_up());
  EXPECT_FALSE(group.cause());
  std::vector<std::thread> threads;
  std::vector<std::string> found(4);
  for (std::size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] {
      found[i] = group.fail({.cause = Error(Errc::backend, std::to_string(i))}).message();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector(found.size(), group.cause()->message()));
  EXPECT_EQ(group.stops, 1);
  EXPECT_EQ(group.causes, std::vector{found[0]});
  EXPECT_TRUE(group.is_broken());
}

TEST(FailingGroup, TakesTheCauseOfThePeerThatWasFirst) {
  const auto store = make_memory_store();
  Probe first(store, 0);
  Probe second(store, 1);
  EXPECT_FALSE(second.poll_peers({}));
  (void)first.fail({.cause = Error(Errc::backend, "the first")});
  EXPECT_TRUE(second.is_up());
  EXPECT_TRUE(second.poll_peers({}));
  EXPECT_EQ(second.cause()->message(), "the first");
  EXPECT_EQ(second.fail({.cause = Error(Errc::timeout, "later")}).message(), "the first");
}

TEST(FailingGroup, ACallThatWasStoppedWaitsForTheCause) {
  const auto store = make_memory_store();
  Probe first(store, 0);
  Probe second(store, 1);
  std::thread peer([&] {
    std::this_thread::sleep_for(50ms);
    (void)first.fail({.cause = Error(Errc::backend, "the cause")});
  });
  EXPECT_EQ(second.await_failure({.cause = Error(Errc::aborted, "stopped")}).message(),
            "the cause");
  peer.join();
}

}  // namespace
}  // namespace tutti::test
