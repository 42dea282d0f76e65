// Polls, yields and sleeps.

#include "backend/waiting.hpp"

#include <stdlib.h>

#include <thread>

#include <gtest/gtest.h>

#include "support/errors.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using internal::futex_wait;
using internal::futex_wake;
using internal::Polling;
using internal::Sharing;

constexpr auto many = std::size_t{8};  // Ranks of one core.

TEST(Polling, EndsWhenReady) {
  for (const std::size_t ranks : {std::size_t{1}, many})
    for (const int polls : {1, 2, 50, 80}) {
      bool ended = false;  // Beside another program a yield may be long, which ends the polls.
      for (int i = 0; i < 100 && !ended; ++i) {
        Polling polling(ranks, 1);
        int left = polls;
        ended = polling.until([&] { return --left == 0; });
      }
      EXPECT_TRUE(ended) << polls;
    }
}

int polls_until_sleep(std::size_t ranks, std::size_t cores) {
  Polling polling(ranks, cores);
  int polls = 0;
  EXPECT_FALSE(polling.until([&] { return ++polls == 0; }));
  return polls;
}

TEST(Polling, PausesOnlyIfEveryRankHasACore) {
  EXPECT_LE(polls_until_sleep(3, 2), 1 + 100);
  const int most = 1 + Polling::pauses_in_a_row() + 100;
  int polls = 0;  // Beside another program a yield may be long, which ends the polls.
  for (int i = 0; i < 100 && polls <= most; ++i) polls = polls_until_sleep(2, 2);
  EXPECT_GT(polls, most);
}

TEST(Polling, PausesForTheTimeInTheEnvironment) {
  const auto with = [](const char* time) {
    ::setenv("TUTTI_POLL_NS", time, 1);
    const int pauses = Polling::pauses_in_a_row();
    ::unsetenv("TUTTI_POLL_NS");
    return pauses;
  };
  const int usual = Polling::pauses_in_a_row();
  EXPECT_GE(usual, 1);
  EXPECT_LE(usual, 64);
  EXPECT_EQ(with("0"), 0);
  EXPECT_NEAR(with("1000000") / 1000.0, with("100000") / 100.0, 1);
  for (const char* wrong : {"fast", "-1", "1000001", "1.5", "2 us"})
    expect_error(Errc::invalid_argument, {"TUTTI_POLL_NS", wrong, "0 to 1000000"}, [&] {
      ::setenv("TUTTI_POLL_NS", wrong, 1);
      Polling(1, 1);
    });
  ::unsetenv("TUTTI_POLL_NS");
}

// The number of pauses follows from the time, because a pause takes 1 to 50 ns.
TEST(Polling, DoesNotPauseLongerIfAPollIsSlow) {
  Polling polling(1, 1);
  int polls = 0;
  EXPECT_FALSE(polling.until([&] {
    std::this_thread::sleep_for(Polling::pausing);
    return ++polls == 0;
  }));
  EXPECT_GE(polls, 1 + Polling::pauses_in_a_row() + 1);
  EXPECT_LE(polls, 1 + Polling::pauses_in_a_row() + 100) << "pauses after a yield";
}

TEST(Polling, DoesNotYieldAgainAfterALongYield) {
  Polling polling(many, 1);
  int polls = 0;
  const auto wait = [&] {
    polls = 0;
    EXPECT_FALSE(
        polling.longer([&] { return ++polls == 0; },
                       []() noexcept { std::this_thread::sleep_for(2 * Polling::yielding); }));
    return polls;
  };
  EXPECT_EQ(wait(), 1);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(wait(), 0) << i;
  polls = 0;
  EXPECT_FALSE(polling.until([&] { return ++polls == 0; }));
  EXPECT_GT(polls, 1);  // It yields again.
}

// With 32 ranks per core, the others have the core for longer than 1 ms.
TEST(Polling, YieldsAgainAfterTheTurnsOfManyRanks) {
  int polls = 0;
  // A busy machine may make a yield longer.
  for (int attempt = 0; attempt < 50 && polls <= 1; ++attempt) {
    Polling polling(64, 2);
    EXPECT_FALSE(
        polling.longer([] { return false; },
                       []() noexcept { std::this_thread::sleep_for(3 * Polling::yielding / 2); }));
    polls = 0;
    EXPECT_FALSE(polling.until([&] { return ++polls == 0; }));
  }
  EXPECT_GT(polls, 1);
}

TEST(Polling, YieldsAgainAfterManyShortYields) {
  int polls = 0;
  // A busy machine may make a yield long.
  for (int attempt = 0; attempt < 50 && polls <= 1; ++attempt) {
    Polling polling(many, 1);
    const auto never = [&] {
      ++polls;
      std::this_thread::sleep_for(Polling::pausing);
      return false;
    };
    EXPECT_FALSE(polling.until(never));  // 1 ms in all.
    polls = 0;
    EXPECT_FALSE(polling.until(never));
  }
  EXPECT_GT(polls, 1);
}

TEST(Futex, DoesNotSleepIfTheWordDiffers) {
  const std::atomic<std::uint32_t> word{1};
  for (const auto sharing : {Sharing::threads, Sharing::processes})
    futex_wait(word, 0, 1h, sharing);
}

TEST(Futex, SleepsForItsTime) {
  const std::atomic<std::uint32_t> word{1};
  const auto start = Polling::Clock::now();
  futex_wait(word, 1, 20ms, Sharing::threads);
  EXPECT_GE(Polling::Clock::now() - start, 20ms);
  futex_wait(word, 1, -1h, Sharing::threads);
}

TEST(Futex, SleepsUntilItIsWoken) {
  for (const auto sharing : {Sharing::threads, Sharing::processes}) {
    std::atomic<std::uint32_t> word{0};
    std::thread waker([&] {
      word = 1;
      futex_wake(word, sharing);
    });
    while (word == 0) futex_wait(word, 0, std::chrono::nanoseconds::max(), sharing);
    waker.join();
  }
}

}  // namespace
}  // namespace tutti::test
