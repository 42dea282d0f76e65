// Ranks that stop, over shared memory between processes. Those that die: tests/programs/kills.

#include <signal.h>

#include <atomic>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "support.hpp"
#include "support/errors.hpp"
#include "support/shared_page.hpp"

namespace tutti::test {
namespace {

// --- Rank 0 with the store ---

/// Numbers that processes share, while the store does not answer.
struct Numbers {
  std::atomic<int> ready;  // Ranks that need the store no more.
  std::atomic<int> measured;
  std::atomic<Clock::rep> moment;  // Of the signal.
};
using Shared = SharedPage<Numbers>;

/// Sends a signal to this process, which is rank 0, once the other ranks do not need the store.
void raise_signal(const Shared& shared, int signal) {
  while (shared->ready < 2) std::this_thread::sleep_for(1ms);
  shared->moment = Clock::now().time_since_epoch().count();
  ::raise(signal);
}

TEST(ShmFailure, AStoppedHostOfTheStoreCostsNoMoreThanTheDeadline) {
  for (const bool message : {false, true}) {
    const Shared shared;
    on_processes({.size = 3}, [&](RankProcess& rank) {
      rank.use_tcp();
      const pid_t host = rank.process(0);
      auto group = ProcessGroup::create(options_of(rank, "host"));
      std::vector<std::uint8_t> data(std::size_t{1} << 20);
      if (rank.rank() == 0) {
        raise_signal(shared, SIGSTOP);
        expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, [&] { group.barrier(); });
      } else {
        ++shared->ready;
        wait_until_stopped(host);
        const auto start = Clock::now();
        const auto error = expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, [&] {
          if (message)
            group.send(data, 0, 0, {.timeout = 200ms});
          else
            group.all_reduce(data, ReduceOp::max, {.timeout = 200ms});
        });
        EXPECT_EQ(error.where().rank, 0) << error.what();
        EXPECT_LT(since(start), 200 + 150 * patience());
        if (++shared->measured == 2) ::kill(host, SIGCONT);
      }
      rank.barrier();
      return std::string();
    });
  }
}

TEST(ShmFailure, AStoppedPeerCostsNoMoreThanTheDeadline) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "stopped"));
    std::vector<std::uint8_t> data(std::size_t{4} << 20);
    group.barrier();
    if (rank.last()) {
      ::raise(SIGSTOP);
      expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, [&] { group.all_reduce(data); });
      return std::string();
    }
    wait_until_stopped(rank.process(1));
    const auto start = Clock::now();
    expect_error(Errc::timeout, {"deadline", "missing: 1"},
                 [&] { group.all_reduce(data, ReduceOp::max, {.timeout = 100ms}); });
    EXPECT_LT(since(start), 100 + 150 * patience());
    ::kill(rank.process(1), SIGCONT);
    return std::string();
  });
}

// A custom reduction stops the rank, after all ranks have entered the call.
TEST(ShmFailure, ARankThatStopsInACallIsNamed) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "stops"));
    std::vector<std::int32_t> data(1'000'000, 1);
    const bool stops = rank.last();
    int folds = stops ? 3 : std::numeric_limits<int>::max();
    const auto op = ReduceOp::custom(
        [](const void* in, void* inout, std::int64_t count, DType, void* left) {
          if ((*static_cast<int*>(left))-- == 0) ::raise(SIGSTOP);
          for (std::int64_t i = 0; i < count; ++i)
            static_cast<std::int32_t*>(inout)[i] += static_cast<const std::int32_t*>(in)[i];
        },
        true, &folds);
    group.barrier();
    if (stops) {
      expect_error({Errc::timeout, Errc::aborted}, {"deadline"},
                   [&] { group.all_reduce(data, op); });
      return std::string();
    }
    const auto error = expect_error(Errc::timeout, {"deadline", "missing: 1"},
                                    [&] { group.all_reduce(data, op, {.timeout = 300ms}); });
    EXPECT_EQ(error.where().rank, 1);
    EXPECT_EQ(error.where().missing, std::vector{1});
    ::kill(rank.process(1), SIGCONT);
    return std::string();
  });
}

}  // namespace
}  // namespace tutti::test
