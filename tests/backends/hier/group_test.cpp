// Groups over hier:shm+gloo whose ranks are processes on simulated hosts: deaths, resources, and
// the bytes that cross between hosts.

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>

#include "../gloo/rank_processes.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Two hosts of two ranks, interleaved.
constexpr const char* four = "a,b,b,a";

GroupOptions options_of(const RankProcess& rank, const std::string& name) {
  auto options = rank.options(name);
  options.backend = "hier:shm+gloo";
  return options;
}

void expect_sums(ProcessGroup& group, std::size_t count) {
  std::vector<std::int32_t> data(count, group.rank() + 1);
  group.all_reduce(data);
  const int n = group.size();
  EXPECT_EQ(data, std::vector<std::int32_t>(count, n * (n + 1) / 2));
}

TEST(HierProcesses, ARankThatCannotMakeItsHostsPartIsNamed) {
  on_processes({.size = 4}, [](RankProcess& rank) {
    ::setenv("TUTTI_HOSTS", "a,a,b,b", 1);
    if (rank.rank() == 2) {  // It makes the shared memory of host b.
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit small{1 << 16, 1 << 16};
      ::setrlimit(RLIMIT_FSIZE, &small);
    }
    auto options = rank.options("limited");
    options.backend = "hier:shm+gloo";
    const auto error = expect_error(Errc::resource_exhausted, {"shared memory"},
                                    [&] { (void)ProcessGroup::create(options); });
    EXPECT_EQ(error.where().rank, 2) << error.what();
    return std::string();
  });
}

TEST(HierProcesses, AStoppedRankIsNamedOnEveryHost) {
  on_processes({.size = 4}, [](RankProcess& rank) {
    rank.use_tcp();  // It might stop while it holds the lock of a store of files.
    const ScopedVariables hosts{{"TUTTI_HOSTS", four}};
    auto group = ProcessGroup::create(options_of(rank, "stopped"));
    std::vector<std::uint8_t> data(std::size_t{1} << 20);
    group.barrier();
    if (rank.last()) {
      ::raise(SIGSTOP);
      expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, [&] { group.all_reduce(data); });
      return std::string();
    }
    wait_until_stopped(rank.process(3));
    const auto start = Clock::now();
    const auto error =
        expect_error(Errc::timeout, {"deadline", "entered: 0 1 2", "missing: 3"},
                     [&] { group.all_reduce(data, ReduceOp::max, {.timeout = 300ms}); });
    EXPECT_LT(Clock::now() - start, 1000ms * patience());
    EXPECT_EQ(error.where().missing, std::vector{3});
    rank.barrier(3);
    if (rank.rank() == 0) ::kill(rank.process(3), SIGCONT);
    return std::string();
  });
}

// The host of the root has ended its part of the broadcast, and waits in the next call.
TEST(HierProcesses, AStoppedRankIsNamedByRanksThatAreInAnotherCall) {
  on_processes({.size = 4}, [](RankProcess& rank) {
    rank.use_tcp();  // It might stop while it holds the lock of a store of files.
    const ScopedVariables hosts{{"TUTTI_HOSTS", four}};
    auto group = ProcessGroup::create(options_of(rank, "ahead"));
    std::vector<float> data(8);
    const auto calls = [&] {
      group.broadcast(data, 1, {.timeout = 500ms});
      group.all_reduce(data, ReduceOp::sum, {.timeout = 500ms});
    };
    group.barrier();
    if (rank.last()) {
      ::raise(SIGSTOP);
      expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, calls);
      return std::string();
    }
    wait_until_stopped(rank.process(3));
    const auto error = expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, calls);
    EXPECT_EQ(error.where().rank, 3) << error.what();
    rank.barrier(3);
    if (rank.rank() == 0) ::kill(rank.process(3), SIGCONT);
    return std::string();
  });
}

// Rank 0 waits for a rank of its own host, whose number there is 1.
TEST(HierProcesses, ARankThatDiesBeforeItSendsIsNamedByItsNumberInTheGroup) {
  for (const std::string backend : {"hier:shm+gloo", "hier:shm+ucx"}) {
    if (std::ranges::none_of(backends(), [&](const BackendEntry& entry) {
          return backend.ends_with(entry.name) && entry.unavailable().empty();
        }))
      continue;
    on_processes({.size = 4, .dies = 3}, [&](RankProcess& rank) {
      const ScopedVariables hosts{{"TUTTI_HOSTS", four}};
      auto options = options_of(rank, "mortal");
      options.backend = backend_here(backend);
      options.logger = [](LogLevel, std::string_view) {};
      auto group = ProcessGroup::create(options);
      group.barrier();
      rank.barrier();
      if (rank.last()) ::raise(SIGKILL);
      std::vector<float> data(100'000);
      const auto error = expect_error({Errc::peer_lost, Errc::aborted}, {"rank 3"}, [&] {
        if (rank.rank() == 0)
          group.recv(data, 3, 0, {.name = "shard of rank 1"});
        else
          group.all_reduce(data);
      });
      EXPECT_EQ(error.where().rank, 3) << error.what();
      return std::string();
    });
  }
}

// The ranks 1 and 3 share the connections of the whole group, whose rank 0 dies. It is no rank of
// theirs, whose rank 0 lives.
TEST(HierProcesses, ARankThatDiesOutsideASubGroupIsNoRankOfIt) {
  for (const std::string backend : {"hier:shm+gloo", "gloo"})
    for (const bool checked : {false, true})
      on_processes({.size = 4, .dies = 0}, [&](RankProcess& rank) {
        const ScopedVariables hosts{{"TUTTI_HOSTS", four}};
        auto options = options_of(rank, "outside");
        options.backend = backend;
        options.checked = checked;
        options.logger = [](LogLevel, std::string_view) {};
        auto group = ProcessGroup::create(options);
        auto part = group.split(rank.rank() % 2);
        part->barrier();
        rank.barrier();
        if (rank.rank() == 0) ::raise(SIGKILL);
        for (const bool whole : {true, false}) {
          const auto error = expect_error({Errc::peer_lost, Errc::aborted}, {"rank 0"}, [&] {
            for (;;) (whole ? group : *part).barrier();
          });
          EXPECT_EQ(error.where().rank, whole || rank.rank() == 2 ? 0 : -1) << error.what();
        }
        auto left = part->shrink();
        EXPECT_EQ(left.size(), rank.rank() == 2 ? 1 : 2);
        left.barrier();
        return std::string();
      });
}

// Each host's share is rounded once, when all are added: a third of the least number is 0, and
// three rounded thirds of the largest are infinite.
TEST(HierThreads, AveragesOfHalvesAreRoundedOnceOnThreeHosts) {
  const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,c,a,c"}};
  constexpr std::size_t size = 6;
  for (const float value : {65504.F, 5.9604645e-8F, 1.F})
    for (const std::size_t count : {size, size * 20'000}) {
      const std::vector<Float16> all(count, Float16(value));
      const auto expect = [&](const std::vector<Float16>& out, const char* what) {
        EXPECT_TRUE(std::ranges::all_of(out, [&](Float16 x) { return x.bits == all[0].bits; }))
            << what << " of " << count << " times " << value;
      };
      on_ranks({"hier:local+gloo", size, false}, [&](ProcessGroup& group) {
        std::vector<Float16> out(count);
        group.all_reduce(all, out, ReduceOp::avg);
        expect(out, "all_reduce");
        out.assign(count, all[0]);
        group.reduce(all, out, 1, ReduceOp::avg);
        expect(out, "reduce");
        std::vector<Float16> part(count / size);
        group.reduce_scatter(all, part, Rows(static_cast<std::int64_t>(part.size())),
                             ReduceOp::avg);
        expect(part, "reduce_scatter");
      });
    }
}

TEST(HierProcesses, GroupsReleaseEverything) {
  on_processes({.size = 4, .limit = 120s}, [](RankProcess& rank) {
    const ScopedVariables hosts{{"TUTTI_HOSTS", "a,a,a,b"}};
    const auto cycle = [&](int i) {
      auto group = ProcessGroup::create(options_of(rank, fmt::format("cycle{}", i)));
      expect_sums(group, 1'500'000);
      std::vector<float> data(10'000, static_cast<float>(rank.rank()));
      std::vector<float> other(10'000);
      group.sendrecv(data, (rank.rank() + 1) % 4, other, (rank.rank() + 3) % 4);
      EXPECT_EQ(other, std::vector<float>(10'000, static_cast<float>((rank.rank() + 3) % 4)));
      auto part = group.split(rank.rank() % 2);
      expect_sums(*part, 10);
    };
    for (int i = 0; i < 3; ++i) cycle(i);
    const auto before = holdings();
    for (int i = 3; i < 10; ++i) cycle(i);
    const auto after = holdings();
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_EQ(after.threads, before.threads);
    return std::string();
  });
}

std::size_t sent_bytes() {
  std::size_t bytes = 0;
  // Not from sysfs, which shows the network of the process that mounted it.
  std::ifstream table("/proc/self/net/dev");
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find("eth0:");
    if (colon == std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 5));
    std::size_t received = 0;
    for (int i = 0; i < 8; ++i) fields >> received;
    fields >> bytes;
  }
  return bytes;
}

// Two processes are hosts of two ranks, which are threads. Each byte crosses once: the data of a
// host for the other one, and in a reduction the other host's partial results.
TEST(HierProcesses, EachByteCrossesBetweenHostsOnce) {
  constexpr std::size_t bytes = std::size_t{4} << 20;
  for (const bool interleaved : {false, true}) {
    const auto output = on_processes({.size = 2}, [&](RankProcess& host) {
      if (!host.enter_own_network()) return std::string("no network");
      host.use_tcp("10.99.0.1");
      std::array<std::size_t, 3> sent{};
      PerRank<std::optional<ProcessGroup>> groups(2);
      const auto on_both = [&](const std::function<void(ProcessGroup & group, int rank)>& body) {
        on_threads(2, [&](int thread) {
          const int rank = interleaved ? 2 * thread + host.rank() : 2 * host.rank() + thread;
          auto& group = groups[thread];
          if (!group) {
            auto options = host.options("crossing");
            options.backend = "hier:local+gloo:=eth0";
            options.rank = rank;
            options.size = 4;
            group.emplace(ProcessGroup::create(options));
          }
          body(*group, rank);
        });
      };
      on_both([](ProcessGroup& group, int) { group.barrier(); });
      std::size_t at = 0;
      for (const auto what : {Operation::all_reduce, Operation::all_gather, Operation::broadcast}) {
        host.barrier();
        const auto before = sent_bytes();
        on_both([&](ProcessGroup& group, int) {
          std::vector<float> whole(bytes / sizeof(float), 1);
          const std::vector<float> part(whole.size() / 4, 1);
          if (what == Operation::all_reduce) group.all_reduce(whole);
          if (what == Operation::all_gather) group.all_gather(part, whole);
          if (what == Operation::broadcast) group.broadcast(whole, 0);
        });
        host.barrier();
        sent[at++] = sent_bytes() - before;
      }
      const auto limit = [](std::size_t payload) {
        return static_cast<double>(payload) * 1.1 + 50'000;
      };
      EXPECT_GE(sent[0], bytes) << "nothing is counted";
      EXPECT_LE(static_cast<double>(sent[0]), limit(bytes)) << "all_reduce";
      EXPECT_LE(static_cast<double>(sent[1]), limit(bytes / 2)) << "all_gather";
      EXPECT_LE(static_cast<double>(sent[2]), limit(host.rank() == 0 ? bytes : 0)) << "broadcast";
      on_threads(2, [&](int thread) { groups[thread].reset(); });
      return fmt::format("{} {} {}", sent[0], sent[1], sent[2]);
    });
    if (output[0] == "no network") GTEST_SKIP() << "may not make network namespaces";
    std::cout << fmt::format("interleaved: {}: bytes sent by host 0: {}\n", interleaved, output[0]);
  }
}

}  // namespace
}  // namespace tutti::test
