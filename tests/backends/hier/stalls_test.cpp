// Ranks that stop, are slow or are late, over every backend of processes: who is declared dead, and
// when. Ranks are processes, on two simulated hosts over hier. A rank that is stopped uses a TCP
// store, because it might stop while it holds the lock of a store of files.

#include <signal.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
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

constexpr auto dead_after = 1s;

/// For tests in which no rank is silent for 3/10 of it. On a busy machine threads that beat may
/// wait longer than 0.3 s for a core.
std::chrono::nanoseconds longer_when_busy() {
  return std::chrono::nanoseconds(dead_after) * static_cast<int>(std::min(patience(), 3.0));
}

enum class Wait : std::uint8_t { barrier, all_reduce, broadcast, recv, send };

/// A call in which the other ranks need the last one.
void call(ProcessGroup& group, Wait what, std::vector<float>& data) {
  const int last = group.size() - 1;
  switch (what) {
    case Wait::barrier:
      return group.barrier();
    case Wait::all_reduce:
      return group.all_reduce(data);
    case Wait::broadcast:
      return group.broadcast(data, last);
    case Wait::recv:
      if (group.rank() == 0) return (void)group.recv(data, last);
      if (group.rank() == last) return group.send(data, 0);
      return group.barrier();
    case Wait::send:
      if (group.rank() == 0) return group.send(data, last);
      if (group.rank() == last) return (void)group.recv(data, 0);
      return group.barrier();
  }
}

class Stalls : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto& backend = GetParam();
    for (const auto* name : {"tcp", "ucx", "gloo", "shm", "hier"}) {
      if (backend.find(name) == std::string::npos) continue;
      const auto found = std::ranges::find(backends(), std::string_view(name), &BackendEntry::name);
      if (found == backends().end()) GTEST_SKIP() << name << " is not built";
      if (const auto why = found->unavailable(); !why.empty()) GTEST_SKIP() << why;
    }
  }

  static GroupOptions options_of(const RankProcess& rank, const std::string& name) {
    auto options = rank.options(name);
    options.backend = GetParam();
    options.timeout = 5min;
    options.dead_after = dead_after;
    return options;
  }
};

/// Collects warnings and errors.
class Lines {
 public:
  Logger logger() {
    return [this](LogLevel level, std::string_view text) {
      if (level > LogLevel::warning) return;
      const std::lock_guard lock(mutex_);
      text_ += fmt::format("{}\n", text);
    };
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// Stops this process. The others lose it meanwhile, and its next call finds that.
void stop_until_lost(ProcessGroup& group) {
  ::raise(SIGSTOP);
  expect_error({Errc::peer_lost, Errc::aborted}, {""}, [&] {
    for (;;) group.barrier();
  });
}

TEST_P(Stalls, ARankThatStopsForGoodIsNamedByAllSurvivorsInTime) {
  struct Case {
    Wait what;
    std::size_t count;
  };
  // A small send does not wait for its receiver.
  for (const Case& c :
       {Case{Wait::barrier, 2}, Case{Wait::all_reduce, 1 << 20}, Case{Wait::broadcast, 1 << 20},
        Case{Wait::recv, 2}, Case{Wait::send, 1 << 20}}) {
    on_processes({.size = 4}, [&](RankProcess& rank) {
      rank.use_tcp();
      const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
      auto group = ProcessGroup::create(options_of(rank, "stopped"));
      std::vector<float> data(c.count, 1);
      group.barrier();
      if (rank.last()) {
        ::raise(SIGSTOP);
        expect_error({Errc::peer_lost, Errc::aborted}, {""}, [&] {
          for (;;) call(group, c.what, data);
        });
        return std::string();
      }
      wait_until_stopped(rank.process(3));
      const auto start = Clock::now();
      const auto error =
          expect_error(Errc::peer_lost, {"rank 3 has not responded for", "is stopped"}, [&] {
            for (;;) call(group, c.what, data);
          });
      EXPECT_LT(Clock::now() - start, dead_after + 1s * patience()) << error.what();
      EXPECT_GE(Clock::now() - start, dead_after * 8 / 10) << error.what();
      EXPECT_EQ(error.where().rank, 3) << error.what();
      expect_error(Errc::aborted, {"first cause", "rank 3"}, [&] { group.barrier(); });
      rank.barrier(3);
      if (rank.rank() == 0) ::kill(rank.process(3), SIGCONT);
      return std::string();
    });
  }
}

TEST_P(Stalls, InCheckedModeAStoppedRankIsNamedToo) {
  on_processes({.size = 4}, [&](RankProcess& rank) {
    rank.use_tcp();
    const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
    auto options = options_of(rank, "checked");
    options.checked = true;
    auto group = ProcessGroup::create(options);
    group.barrier();
    if (rank.last()) {
      stop_until_lost(group);
      return std::string();
    }
    wait_until_stopped(rank.process(3));
    const auto start = Clock::now();
    const auto error = expect_error({Errc::peer_lost, Errc::aborted},
                                    {"rank 3 has not responded for", "is stopped"}, [&] {
                                      for (;;) group.barrier();
                                    });
    EXPECT_LT(Clock::now() - start, dead_after + 1s * patience()) << error.what();
    EXPECT_EQ(error.where().rank, 3) << error.what();
    rank.barrier(3);
    if (rank.rank() == 0) ::kill(rank.process(3), SIGCONT);
    return std::string();
  });
}

TEST_P(Stalls, AShortStopASlowRankAndAStopOfAllRaiseNoAlarm) {
  const auto longer = longer_when_busy();
  on_processes({.size = 4, .limit = 120s}, [&](RankProcess& rank) {
    rank.use_tcp();
    const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
    Lines lines;
    auto options = options_of(rank, "well");
    options.dead_after = longer;
    options.logger = lines.logger();
    auto group = ProcessGroup::create(options);
    const auto expect_result = [&] {
      std::vector<float> data(std::size_t{1} << 18, 1);
      group.all_reduce(data);
      EXPECT_EQ(data, std::vector<float>(data.size(), 4));
    };
    const auto stop_for = [&](pid_t process, std::chrono::nanoseconds time) {
      ::kill(process, SIGSTOP);
      wait_until_stopped(process);
      std::this_thread::sleep_for(time);
      ::kill(process, SIGCONT);
    };
    expect_result();
    // A slow rank: in code of its own for three times the limit.
    if (rank.last()) std::this_thread::sleep_for(3 * longer);
    expect_result();
    EXPECT_EQ(lines.text(), "");
    // A stop that is shorter than the limit, in which the others wait.
    rank.barrier();
    if (rank.rank() == 0) {
      std::thread stopper([&] { stop_for(rank.process(3), longer * 6 / 10); });
      expect_result();
      stopper.join();
    } else {
      expect_result();
    }
    // Ranks that wait for each other and are stopped together, as by a terminal.
    rank.barrier();
    if (rank.rank() == 0) {
      for (const int r : {1, 2, 3}) {
        ::kill(rank.process(r), SIGSTOP);
        wait_until_stopped(rank.process(r));
      }
      std::this_thread::sleep_for(3 * longer);
      for (const int r : {1, 2, 3}) ::kill(rank.process(r), SIGCONT);
    }
    expect_result();
    expect_result();
    return std::string();
  });
}

// The kernel ends a connection whose receiver does not read for longer than its limit
// (TCP_USER_TIMEOUT), so a large message must not wait in the kernel's buffers for a late receive.
TEST_P(Stalls, ALargeMessageMayWaitForItsReceiver) {
  const auto longer = longer_when_busy();
  on_processes({.size = 2}, [&](RankProcess& rank) {
    const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b"}};
    Lines lines;
    auto options = options_of(rank, "late");
    options.dead_after = longer;
    options.logger = lines.logger();
    auto group = ProcessGroup::create(options);
    constexpr std::size_t count = std::size_t{16} << 20;  // 64 MiB.
    std::vector<float> data(count, rank.rank() == 0 ? 1.F : 0.F);
    for (int i = 0; i < 2; ++i) {
      if (rank.last()) std::this_thread::sleep_for(2 * longer);
      if (rank.rank() == 0 && i == 0) group.send(data, 1);
      if (rank.rank() == 1 && i == 0) (void)group.recv(data, 0);
      if (i == 1) group.broadcast(data, 0);
      EXPECT_EQ(std::ranges::count(data, 1.F), static_cast<std::ptrdiff_t>(count));
    }
    EXPECT_EQ(lines.text(), "");
    return std::string();
  });
}

// Rank 0 hosts the store and stops, so the store does not answer.
TEST_P(Stalls, AStoppedHostOfTheStoreEndsTheCallsInTime) {
  on_processes({.size = 3}, [&](RankProcess& rank) {
    const pid_t host = rank.process(0);
    rank.use_tcp();
    const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
    auto group = ProcessGroup::create(options_of(rank, "host"));
    group.barrier();
    if (rank.rank() == 0) {
      stop_until_lost(group);
      return std::string();
    }
    wait_until_stopped(host);
    const auto start = Clock::now();
    const auto error = expect_error({Errc::peer_lost, Errc::aborted}, {"is stopped"}, [&] {
      for (;;) group.barrier();
    });
    // A question to a store that does not answer takes 0.5 s, and each group of hier asks.
    const auto answers = GetParam().starts_with("hier") ? 3s : 2s;
    EXPECT_LT(Clock::now() - start, dead_after + answers * patience()) << error.what();
    if (rank.files()->add("ended", 1) == 2) ::kill(host, SIGCONT);
    return std::string();
  });
}

// The others wait for its record in the store, which does not answer.
TEST_P(Stalls, InCheckedModeAStoppedHostOfTheStoreEndsTheCallsThatWait) {
  on_processes({.size = 3}, [&](RankProcess& rank) {
    const pid_t host = rank.process(0);
    rank.use_tcp();
    const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
    auto options = options_of(rank, "host");
    options.checked = true;
    auto group = ProcessGroup::create(options);
    group.barrier();
    if (rank.rank() == 0) {
      for (const int r : {1, 2})
        (void)options.store->get(fmt::format("host/0/check/1/{}", r), Deadline::after(20s));
      stop_until_lost(group);
      return std::string();
    }
    const auto start = Clock::now();
    const auto error =
        expect_error({Errc::peer_lost, Errc::aborted}, {"is stopped"}, [&] { group.barrier(); });
    // Over shm a question to the store delays the next look at the process.
    EXPECT_LT(Clock::now() - start, 15s * patience()) << error.what();
    if (rank.files()->add("ended", 1) == 2) ::kill(host, SIGCONT);
    return std::string();
  });
}

// A call writes a record first, which would wait for the store's own timeout of 20 s.
TEST_P(Stalls, InCheckedModeAStoppedHostOfTheStoreEndsTheCallsThatBegin) {
  enum class First : std::uint8_t { collective, send, refusal };
  for (const auto first : {First::collective, First::send, First::refusal}) {
    on_processes({.size = 3}, [&](RankProcess& rank) {
      const pid_t host = rank.process(0);
      rank.use_tcp();
      const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
      auto options = options_of(rank, "host");
      options.checked = true;
      auto group = ProcessGroup::create(options);
      group.barrier();
      if (rank.rank() == 0) {
        stop_until_lost(group);
        return std::string();
      }
      wait_until_stopped(host);
      const auto start = Clock::now();
      std::vector<float> data{1};
      if (first == First::refusal)
        expect_error(Errc::invalid_argument, {"root"}, [&] { group.broadcast(data, 7); });
      const auto error = expect_error({Errc::peer_lost, Errc::aborted}, {"is stopped"}, [&] {
        for (;;)
          if (first == First::send && rank.rank() == 1)
            group.send(data, 2);
          else
            group.barrier();
      });
      // Over shm a question to the store, which takes 0.5 s, delays the next look at the process.
      EXPECT_LT(Clock::now() - start, dead_after + 4s * patience()) << error.what();
      if (rank.files()->add("ended", 1) == 2) ::kill(host, SIGCONT);
      return std::string();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OfProcesses, Stalls,
                         testing::Values("gloo", "tcp", "ucx:shm", "shm", "hier:shm+tcp",
                                         "hier:shm+ucx:shm"),
                         [](const auto& about) {
                           std::string name = about.param;
                           std::ranges::replace(name, ':', '_');
                           std::ranges::replace(name, '+', '_');
                           return name;
                         });

}  // namespace
}  // namespace tutti::test
