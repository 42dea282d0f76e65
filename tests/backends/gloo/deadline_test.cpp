// Calls that cannot complete end by the deadline of the whole operation, whatever the peer does. No
// byte is written to the caller's memory afterwards. Ranks are processes.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rank_processes.hpp"
#include "support/errors.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::int64_t MiB = std::int64_t{1} << 20;

std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> all;
  for (double number = 0; in >> number;) all.push_back(number);
  return all;
}

/// Checks how late the calls of all survivors ended, in milliseconds.
void expect_on_time(std::string_view what, const std::vector<std::string>& output,
                    double limit = 100) {
  std::vector<double> late;
  for (const auto& text : output)
    for (const double number : numbers(text)) late.push_back(number);
  ASSERT_FALSE(late.empty());
  std::ranges::sort(late);
  const double median = late[late.size() / 2];
  std::cout << fmt::format(
      "{}: {} calls ended {:.1f} ms after their deadline (median), {:.1f} ms at the most\n", what,
      late.size(), median, late.back());
  EXPECT_LT(median, limit * patience());
  EXPECT_LT(late.back(), 500 * patience());
}

enum class Peer : std::uint8_t { silent, stopped };

struct Case {
  Peer peer = Peer::silent;
  std::int64_t bytes = 8;
  int runs = 20;
  int watched = 2;  ///< In so many runs the memory is watched for 200 ms.
  std::chrono::nanoseconds deadline = 100ms;
};

constexpr std::uint8_t poison = 0xA5;

bool all_poison(const std::vector<std::uint8_t>& data) {
  return std::ranges::all_of(data, [](std::uint8_t byte) { return byte == poison; });
}

/// Calls until one fails, which has to be soon. Returns how late it failed, in milliseconds.
double late_of_first_failure(ProcessGroup& group, std::vector<std::uint8_t>& data,
                             std::chrono::nanoseconds deadline) {
  for (int i = 0; i < 10000; ++i) {
    std::ranges::fill(data, std::uint8_t{1});
    const auto start = Clock::now();
    try {
      group.all_reduce(data, ReduceOp::sum, {.deadline = deadline});
    } catch (const Error& error) {
      const auto late = Milliseconds(Clock::now() - start - deadline).count();
      std::ranges::fill(data, poison);
      EXPECT_TRUE(error.code() == Errc::timeout || error.code() == Errc::peer_lost ||
                  error.code() == Errc::aborted)
          << error.what();
      return late;
    }
    EXPECT_EQ(data.front(), group.size());
    EXPECT_EQ(data.back(), group.size());
  }
  ADD_FAILURE() << "no call failed";
  return 0;
}

/// The last rank is the peer; the others survive it, `runs` times in one process.
void expect_survivors_in_time(std::string_view name, const Case& c) {
  const auto output = on_processes({.size = 3, .limit = 240s}, [&](RankProcess& rank) {
    rank.use_tcp();
    std::vector<std::uint8_t> data(static_cast<std::size_t>(c.bytes));
    std::string late;
    for (int run = 0; run < c.runs; ++run) {
      auto group = rank.make_group(fmt::format("run{}", run));
      group.barrier();  // The new group works.
      rank.barrier();
      if (rank.last()) {
        if (c.peer == Peer::stopped) {
          // Somewhere in a call, a different place each time.
          std::thread stop([run] {
            std::this_thread::sleep_for(1ms * (run * 7 % 20));
            ::raise(SIGSTOP);
          });
          (void)late_of_first_failure(group, data, 5s);
          stop.join();
        }
        rank.barrier();
      } else {
        late += fmt::format("{:.2f} ", late_of_first_failure(group, data, c.deadline));
        if (rank.rank() == 0 && c.peer == Peer::stopped) {
          wait_until_stopped(rank.process(2));
          ::kill(rank.process(2), SIGCONT);
        }
        if (run < c.watched) std::this_thread::sleep_for(200ms);
        EXPECT_TRUE(all_poison(data)) << "written to after the error, in run " << run;
        rank.barrier();
      }
    }
    return late;
  });
  expect_on_time(name, output);
}

TEST(GlooDeadline, ASilentPeerCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time("silent peer, 8 B",
                           {.peer = Peer::silent, .bytes = 8, .runs = 6, .watched = 1});
}

TEST(GlooDeadline, AStoppedPeerCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time("stopped peer, 8 B",
                           {.peer = Peer::stopped, .bytes = 8, .runs = 6, .watched = 1});
}

TEST(GlooDeadline, ASilentPeerOfALargeCallCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time("silent peer, 16 MiB",
                           {.peer = Peer::silent, .bytes = 16 * MiB, .runs = 3, .watched = 1});
}

TEST(GlooDeadline, AStoppedPeerOfALargeCallCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time(
      "stopped peer, 16 MiB",
      {.peer = Peer::stopped, .bytes = 16 * MiB, .runs = 3, .watched = 1, .deadline = 250ms});
}

TEST(SlowGlooDeadline, ASilentOrStoppedPeerCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time("silent peer, 8 B", {.peer = Peer::silent, .bytes = 8});
  expect_survivors_in_time("stopped peer, 8 B", {.peer = Peer::stopped, .bytes = 8});
}

TEST(SlowGlooDeadline, ASilentPeerOfAVeryLargeCallCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time("silent peer, 256 MiB", {.peer = Peer::silent, .bytes = 256 * MiB});
}

TEST(SlowGlooDeadline, AStoppedPeerOfAVeryLargeCallCostsNoMoreThanTheDeadline) {
  expect_survivors_in_time("stopped peer, 256 MiB",
                           {.peer = Peer::stopped, .bytes = 256 * MiB, .deadline = 500ms});
}

// The survivors cannot ask the store which rank failed first, and their own connections end when
// one of them has detected the failure.
TEST(GlooDeadline, ADeadStoreIsNotBlamedOnARankThatLives) {
  for (int run = 0; run < 3; ++run)
    on_processes({.size = 3, .dies = 0}, [&](RankProcess& rank) {
      rank.use_tcp();  // Rank 0 holds the store.
      auto group = rank.make_group("mortal");
      std::vector<std::uint8_t> data(64);
      group.barrier();
      if (rank.rank() == 0) ::raise(SIGKILL);
      try {
        group.all_reduce(data);
        ADD_FAILURE() << "the call succeeded without rank 0";
      } catch (const Error& error) {
        EXPECT_LE(error.where().rank, 0) << error.what();
      }
      return std::string();
    });
}

// --- A link of 1 Mbit/s ---

void expect_on_time_over_a_slow_link(bool store_too, int runs) {
  const auto output =
      on_processes({.size = 2, .limit = 240s}, [&](RankProcess& rank) -> std::string {
        if (!rank.enter_own_network("1mbit")) return "no link";
        if (store_too) rank.use_tcp("10.99.0.1");
        std::vector<std::uint8_t> small(8);
        std::vector<std::uint8_t> data(16 * MiB);
        std::string late;
        for (int run = 0; run < runs; ++run) {
          auto group = rank.make_group(fmt::format("run{}", run));
          for (int i = 0; i < 3; ++i) {
            std::ranges::fill(small, std::uint8_t{1});
            group.all_reduce(small, ReduceOp::sum, {.deadline = 5s});
            EXPECT_EQ(small, std::vector<std::uint8_t>(8, 2));
          }
          late += fmt::format("{:.2f} ", late_of_first_failure(group, data, 300ms));
          if (run < 2) std::this_thread::sleep_for(200ms);
          EXPECT_TRUE(all_poison(data)) << "written to after the error, in run " << run;
          rank.barrier();
        }
        return late;
      });
  if (output[0] == "no link") GTEST_SKIP() << "network namespaces or tc are not permitted here";
  // A request to a store behind the full link and its reply take 200 ms.
  if (store_too)
    expect_on_time("link of 1 Mbit/s, the store behind it", output, 300);
  else
    expect_on_time("link of 1 Mbit/s", output);
}

TEST(GlooDeadline, AFailedCreateOfManyRanksIsOnTime) {
  on_processes({.size = 1}, [](RankProcess& rank) {
    auto options = rank.options("alone");
    options.size = 200;
    options.timeout = 300ms;
    const auto start = Clock::now();
    expect_error(Errc::timeout, {"1 of 200 ranks joined"},
                 [&] { (void)ProcessGroup::create(options); });
    EXPECT_LT(Clock::now() - start, options.timeout + 400ms * patience());
    return std::string();
  });
}

TEST(GlooDeadline, ALinkOfOneMegabitCostsNoMoreThanTheDeadline) {
  expect_on_time_over_a_slow_link(false, 2);
}

TEST(SlowGlooDeadline, ASlowLinkCostsNoMoreThanTheDeadline) {
  expect_on_time_over_a_slow_link(false, 20);
}

TEST(SlowGlooDeadline, ASlowLinkToTheStoreCostsNoMoreThanTheDeadline) {
  expect_on_time_over_a_slow_link(true, 20);
}

TEST(ReceivesFromAnyRank, EndWithItsNumberWhenOneDiesAndOthersMayStillSend) {
  constexpr auto most = 10s;  // Of the 60 s that the call allows.
  on_processes({.size = 3, .dies = 2}, [&](RankProcess& process) {
    auto group = process.make_group("any");
    group.barrier();
    if (process.last()) ::kill(::getpid(), SIGKILL);
    std::vector<std::int32_t> data(4);
    const auto start = Clock::now();
    expect_error(Errc::peer_lost, {"rank 2"},
                 [&] { (void)group.recv(data, any_peer, 1, {.timeout = 60s}); });
    EXPECT_LT(Clock::now() - start, most);
    return std::string();
  });
}

}  // namespace
}  // namespace tutti::test
