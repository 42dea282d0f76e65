// Ranks that die, stop or abort, over shared memory between processes.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <limits>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "memory/member.hpp"
#include "shm/messages.hpp"
#include "support.hpp"
#include "support/errors.hpp"
#include "support/shared_page.hpp"

namespace tutti::test {
namespace {

namespace shm = backend::shm;

enum class What : std::uint8_t { all_reduce, broadcast, barrier, message };

/// Calls until the rank is killed or loses a peer.
void call_for_ever(ProcessGroup& group, What what, std::vector<std::uint8_t>& data) {
  for (;;) {
    switch (what) {
      case What::all_reduce:
        group.all_reduce(data, ReduceOp::max);
        break;
      case What::broadcast:
        group.broadcast(data, group.size() - 1);
        break;
      case What::barrier:
        group.barrier();
        break;
      case What::message:
        if (group.rank() == 0) {
          group.recv(data, group.size() - 1);
        } else if (group.rank() == group.size() - 1) {
          group.send(data, 0);
        } else {
          group.barrier();
        }
        break;
    }
  }
}

/// Of the moments from a kill to the end of a survivor's call.
void report(const std::string& what, std::vector<double> milliseconds) {
  std::ranges::sort(milliseconds);
  ASSERT_FALSE(milliseconds.empty());
  std::cout << fmt::format(
      "{}: calls ended {:.1f} ms after the kill (median of {}), {:.1f} ms at "
      "the most\n",
      what, milliseconds[milliseconds.size() / 2], milliseconds.size(), milliseconds.back());
}

/// Kills a rank of three, each in turn, at a random moment.
void expect_survivors(What what, std::size_t bytes, int runs, bool checked = false) {
  std::vector<double> after;
  for (int run = 0; run < runs; ++run) {
    const int victim = run % 3;
    const auto output = on_processes({.size = 3, .dies = victim}, [&](RankProcess& rank) {
      std::vector<std::uint8_t> data(bytes);
      const Held before;
      double took = 0;
      {
        auto mortal = options_of(rank, "mortal");
        mortal.checked = checked;
        auto group = ProcessGroup::create(mortal);
        group.barrier();
        rank.barrier();
        if (rank.rank() == victim) {
          std::thread killer([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(run * 7919 % 20'000));
            rank.store().set("killed", std::to_string(Clock::now().time_since_epoch().count()));
            ::raise(SIGKILL);
          });
          call_for_ever(group, what, data);
        }
        const auto error = expect_error(Errc::peer_lost, {fmt::format("rank {}", victim)},
                                        [&] { call_for_ever(group, what, data); });
        const auto ended = Clock::now();
        EXPECT_EQ(error.where().rank, victim) << error.what();
        const auto killed = Clock::time_point(
            Clock::duration(std::stoll(rank.store().get_text("killed", Deadline::after(5s)))));
        took = Milliseconds(ended - killed).count();
        EXPECT_LT(took, 200 * patience());
        rank.barrier(2);
        auto options = options_of(rank, "survivors");
        options.rank -= options.rank > victim ? 1 : 0;
        options.size = 2;
        auto survivors = ProcessGroup::create(options);
        expect_sums(survivors, 100'000);
      }
      EXPECT_EQ(Held(), before);
      return std::to_string(took);
    });
    for (std::size_t r = 0; r < output.size(); ++r)
      if (static_cast<int>(r) != victim && !output[r].starts_with("threw "))
        after.push_back(std::stod(output[r]));
  }
  report(fmt::format("killed peer, {} B", bytes), after);
}

TEST(ShmFailure, AKilledPeerEndsTheCallsOfAllSurvivors) {
  expect_survivors(What::all_reduce, 8, 3);
  expect_survivors(What::all_reduce, std::size_t{8} << 20, 3);
  expect_survivors(What::broadcast, std::size_t{1} << 20, 3);
  expect_survivors(What::barrier, 8, 3);
  expect_survivors(What::barrier, 8, 3, true);
  expect_survivors(What::message, std::size_t{1} << 20, 3);
}

TEST(SlowShmFailure, AKilledPeerEndsTheCallsOfAllSurvivors) {
  for (const auto what : {What::all_reduce, What::broadcast, What::barrier, What::message})
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20})
      expect_survivors(what, bytes, 25);
}

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

TEST(ShmFailure, AllSurvivorsNameTheRankThatDiedWithTheStore) {
  std::vector<double> after;
  for (int run = 0; run < 3; ++run) {
    const Shared shared;
    const auto output = on_processes({.size = 3, .dies = 0}, [&](RankProcess& rank) {
      rank.use_tcp();
      const Held before;
      double took = 0;
      {
        auto group = ProcessGroup::create(options_of(rank, "host"));
        std::vector<std::uint8_t> data(8);
        if (rank.rank() == 0) raise_signal(shared, SIGKILL);
        ++shared->ready;
        const auto error = expect_error(Errc::peer_lost, {"rank 0"},
                                        [&] { call_for_ever(group, What::all_reduce, data); });
        took = since(Clock::time_point(Clock::duration(shared->moment)));
        EXPECT_EQ(error.where().rank, 0) << error.what();
        EXPECT_LT(took, 200 * patience());
      }
      EXPECT_EQ(Held(), before);
      return std::to_string(took);
    });
    for (const std::size_t r : {1U, 2U})
      if (!output[r].starts_with("threw ")) after.push_back(std::stod(output[r]));
  }
  report("killed host of the store", after);
}

TEST(ShmFailure, AStoppedHostOfTheStoreCostsNoMoreThanTheDeadline) {
  for (const auto what : {What::all_reduce, What::message}) {
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
          if (what == What::all_reduce)
            group.all_reduce(data, ReduceOp::max, {.timeout = 200ms});
          else
            group.send(data, 0, 0, {.timeout = 200ms});
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
