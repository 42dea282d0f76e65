// The resources that groups over gloo hold and release. Ranks are processes.

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rank_processes.hpp"
#include "support/errors.hpp"
#include "support/sanitizers.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

void expect_usable(ProcessGroup& group) {
  std::vector<std::int32_t> data(3, group.rank() + 1);
  group.all_reduce(data);
  EXPECT_EQ(data, std::vector<std::int32_t>(3, group.size() * (group.size() + 1) / 2));
}

/// The CPU time of this thread.
double own_milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

TEST(GlooResources, SubGroupsUseTheConnectionsOfTheirParent) {
  on_processes({.size = 3}, [](RankProcess& rank) {
    auto group = rank.make_group("parent");
    expect_usable(group);
    std::vector<ProcessGroup> parts;
    parts.reserve(64);
    std::vector<double> own;
    std::vector<double> wall;
    const auto before = holdings();
    for (int i = 0; i < 64; ++i) {
      group.barrier();
      const auto start = Clock::now();
      const auto own_start = own_milliseconds();
      parts.push_back(std::move(*group.split(i % 3 == 2 ? rank.rank() % 2 : 0, -rank.rank())));
      own.push_back(own_milliseconds() - own_start);
      wall.push_back(Milliseconds(Clock::now() - start).count());
    }
    for (auto& part : parts) expect_usable(part);
    const auto after = holdings();
    // Less if connections of the parent's rendezvous ended later.
    EXPECT_LE(after.descriptors, before.descriptors);
    EXPECT_EQ(after.threads, before.threads);
    EXPECT_LT(median(own), patience());
    if (rank.rank() == 0)
      std::cout << fmt::format(
          "a split takes {:.3f} ms of its own (median), {:.3f} ms with what it waits for; 64 "
          "sub-groups took {} KiB\n",
          median(own), median(wall),
          static_cast<std::int64_t>(after.resident_kib) -
              static_cast<std::int64_t>(before.resident_kib));
    return std::string();
  });
}

/// Runs `cycle` until memory has settled, then `cycles` times: nothing may grow.
void expect_no_growth(RankProcess& rank, int cycles, const std::function<void(int)>& cycle) {
  constexpr int warm_up = 10;
  for (int i = 0; i < warm_up; ++i) cycle(i);
  const auto before = holdings();
  for (int i = 0; i < cycles; ++i) cycle(warm_up + i);
  const auto after = holdings();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  const auto grown = static_cast<std::int64_t>(after.resident_kib) -
                     static_cast<std::int64_t>(before.resident_kib);
  // A thread's stack or a buffer of the transport is more per cycle; some noise is the allocator's.
  if (!reduced()) {
    EXPECT_LT(grown, 512 + 4 * cycles);
  }
  if (rank.rank() == 0)
    std::cout << fmt::format("{} cycles: {} descriptors, {} threads, {} KiB more\n", cycles,
                             after.descriptors, after.threads, grown);
}

void expect_no_growth_by_groups(int cycles) {
  on_processes({.size = 3, .limit = 120s}, [&](RankProcess& rank) {
    expect_no_growth(rank, cycles, [&](int i) {
      auto group = rank.make_group(fmt::format("cycle{}", i));
      expect_usable(group);
      group.barrier_async().wait();
      auto part = group.split(0);
      expect_usable(*part);
    });
    return std::string();
  });
}

/// One heap for all threads, with 8 MiB of room: Gloo's thread, too, may allocate at any time after
/// take_all_threads().
void make_room_in_the_heap() {
  ASSERT_EQ(::mallopt(M_ARENA_MAX, 1), 1);
  constexpr int bytes = 8 << 20;
  ASSERT_EQ(::mallopt(M_MMAP_THRESHOLD, 2 * bytes), 1);
  ASSERT_EQ(::mallopt(M_TRIM_THRESHOLD, 2 * bytes), 1);
  std::free(std::malloc(bytes));
}

/// Leaves the process without room for the stack of one more thread.
void take_all_threads() {
  const rlimit nothing_more{1, 1};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &nothing_more), 0);
  try {  // Stacks of threads that have ended are used again.
    for (;;) std::thread([] { std::this_thread::sleep_for(1h); }).detach();
  } catch (const std::system_error&) {
  }
}

// Gloo can only be waited for, so a message with a callback takes a thread.
TEST(GlooResources, ACallbackOfAMessageWithoutAThreadIsRefused) {
  if (address_sanitizer || thread_sanitizer)
    GTEST_SKIP() << "a sanitizer needs address space of its own at any time";
  on_processes({.size = 2}, [](RankProcess& rank) {
    make_room_in_the_heap();
    auto group = rank.make_group("threads");
    std::vector<float> data(4, static_cast<float>(rank.rank()));
    group.barrier_async().wait();  // Starts the worker.
    if (rank.rank() == 1) {
      rank.barrier();
      for (int i = 0; i < 3; ++i) group.send(data, 0);
      rank.barrier();
      return std::string();
    }
    int ran = 0;
    auto late = std::vector<float>(4);
    Work polled = group.recv_async(late, 1, 1, {.timeout = 2s});  // Never sent.
    Work work = group.recv_async(data, 1);
    take_all_threads();
    const std::vector<std::string> why{"cannot start a thread", "send or receive"};
    expect_error(Errc::resource_exhausted, why, [&] { work.on_done([&](auto*) { ++ran; }); });
    expect_error(Errc::resource_exhausted, why,
                 [&] { work = std::move(work).then([&] { ++ran; }); });
    EXPECT_FALSE(work.done());
    rank.barrier();
    work.wait();  // On this thread.
    EXPECT_EQ(data, std::vector<float>(4, 1));
    work = group.recv_async(data, 1);
    expect_error(Errc::resource_exhausted, why, [&] { std::move(work).detach(); });
    EXPECT_TRUE(work.done()) << "detach() waits where it is refused";
    work.wait();
    group.recv(data, 1);
    EXPECT_EQ(ran, 0);
    for (const Deadline limit = 20s; !polled.done() && !limit.expired();)
      std::this_thread::sleep_for(10ms);
    expect_error(Errc::timeout, {"recv"}, [&] { polled.wait(); });
    rank.barrier();
    return std::string();
  });
}

TEST(GlooResources, GroupsGiveEverythingBack) {
  expect_no_growth_by_groups(15);
}

TEST(SlowGlooResources, GroupsGiveEverythingBack) {
  expect_no_growth_by_groups(200);
}

/// The number of sockets of a program that this process starts.
int sockets_of_a_program() {
  FILE* program = ::popen("ls -l /proc/self/fd | grep -c socket:", "re");  // NOLINT(cert-env33-c)
  int count = -1;
  if (program == nullptr || std::fscanf(program, "%d", &count) != 1) ADD_FAILURE();
  ::pclose(program);
  return count;
}

TEST(GlooResources, NoSocketOfAGroupReachesAProgramThatItStarts) {
  on_processes({.size = 3}, [](RankProcess& rank) {
    const auto before = sockets_of_a_program();
    auto group = rank.make_group("private");
    expect_usable(group);
    group.barrier_async().wait();
    EXPECT_EQ(sockets_of_a_program(), before);
    rank.barrier();
    return std::string();
  });
}

/// The peer ends in one of several ways while the other rank sends.
TEST(GlooResources, APeersDeathDoesNotEndTheSender) {
  for (const bool killed : {false, true})
    for (int i = 0; i < 3; ++i)
      on_processes({.size = 2, .dies = killed ? 1 : -1}, [&](RankProcess& rank) {
        struct sigaction pipe {};
        ::sigaction(SIGPIPE, nullptr, &pipe);
        EXPECT_EQ(pipe.sa_handler, SIG_DFL);
        sigset_t blocked;
        ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0);
        std::optional<ProcessGroup> group = rank.make_group("mortal");
        std::vector<float> data(256 << 10);
        if (rank.last()) {
          for (int k = 0; k < i; ++k) group->recv(data, 0);
          if (killed) ::raise(SIGKILL);
          return std::string();
        }
        bool lost = false;
        for (int k = 0; k < 1000 && !lost; ++k) {
          try {
            std::vector<Work> works;
            for (int m = 0; m < 4; ++m) works.push_back(group->send_async(data, 1));
            auto all = Work::all(works);
            all.wait();
          } catch (const Error&) {
            lost = true;
          }
        }
        EXPECT_TRUE(lost);
        EXPECT_THROW(group->barrier(), Error);
        group.reset();
        ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0) << "the mask is not as it was";
        return std::string();
      });
}

}  // namespace
}  // namespace tutti::test
