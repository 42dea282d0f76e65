// Beats of ranks, and the judgement of those that are silent, on a clock of the test.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>

#include "backend/heartbeats.hpp"
#include "support/processes.hpp"
#include "support/store_over.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using internal::Heartbeats;

/// A store of processes, which counts its calls and may end or fall silent.
class CountingStore final : public StoreOver {
 public:
  enum class State : std::uint8_t { up, ended, silent };
  State state = State::up;
  std::chrono::nanoseconds time_of_read{};
  int reads = 0;
  int writes = 0;

  CountingStore() : StoreOver(make_memory_store()) {}
  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    ++writes;
    check();
    StoreOver::set(key, value);
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    ++reads;
    if (time_of_read > 0ns) std::this_thread::sleep_for(time_of_read);
    check();
    return StoreOver::get(key, deadline);
  }

 private:
  void check() const {
    if (state == State::ended) throw Error(Errc::peer_lost, "the server has closed it");
    if (state == State::up) return;
    std::this_thread::sleep_for(500ms);  // As long as a TCP store waits for an answer.
    throw Error(Errc::timeout, "no answer");
  }
};

class HeartbeatsTest : public testing::Test {
 protected:
  BackendInit init_of(int rank, int size = 3) {
    return {
        .store = store,
        .rank = rank,
        .size = size,
        .name = "g",
        .logger = [this](LogLevel, std::string_view text) { lines += std::string(text) + '\n'; },
        .dead_after = 10s};
  }
  /// Lets `time` pass in steps, in which all of `beating` beat and `reader` looks at `awaited`.
  std::optional<Error> pass(std::chrono::nanoseconds time, Heartbeats& reader,
                            const std::vector<int>& awaited,
                            const std::vector<Heartbeats*>& beating = {},
                            std::chrono::nanoseconds step = 100ms) {
    for (const auto end = now + time; now < end;) {
      now += step;
      for (auto* other : beating) EXPECT_FALSE(other->look(now, {}));
      if (auto error = reader.look(now, awaited)) return error;
    }
    return std::nullopt;
  }

  std::shared_ptr<CountingStore> store = std::make_shared<CountingStore>();
  std::string lines;
  Heartbeats::Clock::time_point now = Heartbeats::Clock::now();
};

TEST_F(HeartbeatsTest, ASilentRankIsSuspectedOnceAndThenDead) {
  Heartbeats reader(init_of(0));
  Heartbeats peer(init_of(1));
  Heartbeats other(init_of(2));
  EXPECT_FALSE(pass(60s, reader, {1, 2}, {&peer, &other}));
  EXPECT_EQ(lines, "");
  EXPECT_FALSE(pass(2500ms, reader, {1, 2}, {&other}));
  EXPECT_EQ(lines, "");
  EXPECT_FALSE(pass(6500ms, reader, {1, 2}, {&other}));
  EXPECT_EQ(lines,
            "group 'g': rank 1 has been silent for 3.0 s; it counts as dead after 10 s "
            "(dead_after)\n");
  const auto error = pass(2s, reader, {1, 2}, {&other});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Errc::peer_lost);
  EXPECT_EQ(error->where().rank, 1);
  EXPECT_EQ(error->message(),
            "rank 1 has not responded for 10.0 s: its process is stopped, or its host or link is "
            "down");
}

TEST_F(HeartbeatsTest, TimeInWhichTheReaderDidNotRunIsNotCounted) {
  Heartbeats reader(init_of(0));
  Heartbeats peer(init_of(1));
  EXPECT_FALSE(pass(10s, reader, {1}, {&peer}));
  now += 1h;  // Both are stopped, and the reader runs first.
  EXPECT_FALSE(reader.look(now, std::vector{1}));
  EXPECT_FALSE(pass(10s, reader, {1}, {&peer}));
  // A starved reader: the peer gets to run as rarely.
  EXPECT_FALSE(pass(600s, reader, {1}, {&peer}, 30s));
  EXPECT_EQ(lines, "");
}

TEST_F(HeartbeatsTest, ARankThatHasLeftOrHasNeverBeatenIsNotJudged) {
  Heartbeats reader(init_of(0));
  { const Heartbeats left(init_of(1)); }
  store->set("agreement/left/1", "7");
  EXPECT_FALSE(pass(60s, reader, {1, 2}));
  EXPECT_EQ(lines, "");
}

TEST_F(HeartbeatsTest, ARankThatDoesNotWaitReadsNoPeer) {
  Heartbeats reader(init_of(0));
  store->reads = store->writes = 0;
  EXPECT_FALSE(pass(20s, reader, {}));
  EXPECT_NEAR(store->reads, 20, 1);  // Before each write, whether the store answers.
  EXPECT_NEAR(store->writes, 20, 1);
}

TEST_F(HeartbeatsTest, ARankThatAwaitsManyReadsAFifthAndFindsTheDeadOne) {
  for (const int size : {100, 1000}) {
    std::vector<Heartbeats> ranks;
    ranks.reserve(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) ranks.emplace_back(init_of(r, size));
    std::vector<Heartbeats*> beating;
    for (int r = 1; r < size; ++r) beating.push_back(&ranks[static_cast<std::size_t>(r)]);
    std::vector<int> awaited(static_cast<std::size_t>(size) - 1);
    std::iota(awaited.begin(), awaited.end(), 1);
    EXPECT_FALSE(pass(5s, ranks[0], awaited, beating));
    beating.erase(beating.begin() + 76);  // Rank 77.
    now += 1s;
    for (auto* other : beating) EXPECT_FALSE(other->look(now, {}));
    store->reads = 0;
    EXPECT_FALSE(ranks[0].look(now, awaited));
    EXPECT_GE(store->reads, 32);
    EXPECT_LE(store->reads, 1 + std::max(32, size / 5));
    // It takes up to a quarter of 10 s until its last beat has been read.
    const auto error = pass(14s, ranks[0], awaited, beating);
    ASSERT_TRUE(error) << size;
    EXPECT_EQ(error->where().rank, 77);
    EXPECT_EQ(lines.find("rank 77"), lines.rfind("rank")) << lines;
    lines.clear();
  }
}

TEST_F(HeartbeatsTest, ASlowStoreTakesAtMostATenthOfTheTime) {
  constexpr int size = 1000;
  Heartbeats reader(init_of(0, size));
  std::vector<int> awaited(size - 1);
  std::iota(awaited.begin(), awaited.end(), 1);
  store->time_of_read = 2ms;
  store->reads = 0;
  EXPECT_FALSE(reader.look(now, awaited));
  EXPECT_LE(store->reads, 1 + 32) << "50 ms are over";
}

TEST_F(HeartbeatsTest, WhileTheStoreThrowsNoRankIsJudged) {
  Heartbeats reader(init_of(0));
  Heartbeats peer(init_of(1));
  EXPECT_FALSE(pass(5s, reader, {1}, {&peer}));
  store->state = CountingStore::State::ended;
  EXPECT_FALSE(pass(60s, reader, {1}));
  EXPECT_TRUE(reader.store_answers());
}

TEST_F(HeartbeatsTest, ASilentStoreIsAnErrorOnlyOfARankThatWaits) {
  auto init = init_of(0);
  init.dead_after = 1s;
  Heartbeats reader(init);
  store->state = CountingStore::State::silent;
  store->writes = 0;
  EXPECT_FALSE(pass(2s, reader, {}, {}, 400ms));
  EXPECT_FALSE(reader.store_answers());
  const auto error = pass(2s, reader, {1}, {}, 400ms);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Errc::peer_lost);
  EXPECT_EQ(error->where().rank, -1);
  EXPECT_TRUE(error->message().starts_with("the store has not answered rank 0 for 1."));
  EXPECT_EQ(store->writes, 0) << "a write would block";
}

TEST_F(HeartbeatsTest, AStoreWithoutTheKeyOfTheRankIsNotSilent) {
  Heartbeats reader(init_of(0));
  Heartbeats peer(init_of(1));
  EXPECT_FALSE(pass(1s, reader, {1}, {&peer}));
  EXPECT_TRUE(store->erase("agreement/beat/0"));  // By ranks that took this one for dead.
  EXPECT_FALSE(pass(1s, reader, {1}, {&peer}));
  EXPECT_TRUE(reader.store_answers());
  EXPECT_TRUE(store->try_get("agreement/beat/0")) << "it beats again";
}

TEST_F(HeartbeatsTest, AStoreThatEndsAfterItWasSilentStaysSilent) {
  auto init = init_of(0);
  init.dead_after = 1s;
  Heartbeats reader(init);
  store->state = CountingStore::State::silent;
  EXPECT_FALSE(pass(100ms, reader, {1}));
  store->state = CountingStore::State::ended;  // The kernel has given up the connection.
  std::optional<Error> error;
  for (const auto limit = Deadline::after(5s); !error && !limit.expired();) {
    std::this_thread::sleep_for(20ms);
    now = Heartbeats::Clock::now();
    error = reader.look(now, std::vector{1});
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->where().rank, -1);
}

/// Stops the process of the server after the next question, if there is one.
class StoppingStore final : public StoreOver {
 public:
  using StoreOver::StoreOver;
  Bytes get(std::string_view key, Deadline deadline) override {
    auto value = StoreOver::get(key, deadline);
    if (server > 0) {
      ::kill(server, SIGSTOP);
      int status = 0;
      EXPECT_GT(::waitpid(std::exchange(server, 0), &status, WUNTRACED), 0);
    }
    return value;
  }
  pid_t server = 0;
};

TEST_F(HeartbeatsTest, AStoreThatStopsBetweenItsQuestionAndTheBeatDelaysNoLookForLong) {
  if (is_emulated()) GTEST_SKIP() << "a forked child cannot start the thread of a server";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const StoreServer server({.host = "127.0.0.1"});
    const int port = server.port();
    (void)!::write(ends[1], &port, sizeof port);
    ::pause();
    ::_exit(0);
  }
  int port = 0;
  ASSERT_EQ(::read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  for (const int end : ends) ::close(end);
  const auto stopping = std::make_shared<StoppingStore>(make_tcp_store("127.0.0.1", port, 60s));
  auto init = init_of(0);
  init.store = stopping;
  Heartbeats reader(init);
  stopping->server = child;
  const auto start = Heartbeats::Clock::now();
  EXPECT_FALSE(reader.look(start + 2s, std::vector{1}));
  EXPECT_EQ(stopping->server, 0) << "it has asked";
  EXPECT_LT(Heartbeats::Clock::now() - start, 20s);
  EXPECT_FALSE(reader.store_answers());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(HeartbeatsTest, ThreadsOfOneProcessAndZeroTakeNoRoundTrips) {
  auto off = init_of(0);
  off.dead_after = 0s;
  Heartbeats never(off);
  EXPECT_FALSE(pass(60s, never, {1}));
  EXPECT_EQ(store->reads + store->writes, 0);
  auto threads = init_of(0);
  threads.store = make_memory_store();
  EXPECT_FALSE(Heartbeats(threads).is_on());
  EXPECT_TRUE(Heartbeats(init_of(0)).is_on());
}

TEST(StoppedProcess, IsDeadWhenItWasStoppedAtEveryLookForTheTime) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto change = [&](int signal, int options) {
    ::kill(child, signal);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, options), child);
  };
  auto now = internal::StoppedProcess::Clock::now();
  internal::StoppedProcess watched(10s);
  const auto time_of_death = [&](std::chrono::seconds limit) {
    for (auto passed = 0ms; passed < limit; passed += 20ms) {
      if (watched.is_dead(child, now)) return passed;
      now += 20ms;
    }
    return -1ms;
  };
  EXPECT_EQ(time_of_death(60s), -1ms);
  change(SIGSTOP, WUNTRACED);
  EXPECT_EQ(time_of_death(8s), -1ms);
  change(SIGCONT, WCONTINUED);
  EXPECT_EQ(time_of_death(1s), -1ms);
  change(SIGSTOP, WUNTRACED);
  now += 1h;  // The reader was stopped, too.
  const auto died = time_of_death(60s);
  EXPECT_GE(died, 10s);
  EXPECT_LE(died, 11s);
  // A rank that sleeps looks once in 20 ms or a little more.
  internal::StoppedProcess quickly(100ms);
  const auto start = now;
  while (!quickly.is_dead(child, now) && now - start < 10s) now += 23ms;
  EXPECT_GE(now - start, 100ms);
  EXPECT_LE(now - start, 250ms);
  internal::StoppedProcess never(0s);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(never.is_dead(child, now += 100ms));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace tutti::test
