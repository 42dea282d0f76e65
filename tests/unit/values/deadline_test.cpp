#include <tutti/deadline.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include <tutti/call_options.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;
using Nanoseconds = std::chrono::nanoseconds;

TEST(Deadline, DefaultMadeIsNotSetAndNeverExpires) {
  const Deadline deadline;
  EXPECT_FALSE(deadline.is_set());
  EXPECT_FALSE(deadline.is_none());
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), Nanoseconds::max());
  EXPECT_EQ(deadline.time(), Clock::time_point::max());
}

TEST(Deadline, NoneIsSetAndNeverExpires) {
  const Deadline deadline = Deadline::none();
  EXPECT_TRUE(deadline.is_set());
  EXPECT_TRUE(deadline.is_none());
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), Nanoseconds::max());
}

TEST(Deadline, CountsFromNow) {
  const auto before = Clock::now();
  const Deadline deadline = 5s;
  const auto after = Clock::now();
  EXPECT_GE(deadline.time(), before + 5s);
  EXPECT_LE(deadline.time(), after + 5s);
  EXPECT_LE(deadline.remaining(), 5s);
  EXPECT_GT(deadline.remaining(), 0s);
}

TEST(Deadline, IsWrittenAsADurationInCallOptions) {
  const CallOptions options{.deadline = 20ms};
  EXPECT_TRUE(options.deadline.is_set());
  EXPECT_FALSE(options.deadline.is_none());
}

TEST(Deadline, ExpiresWhenItsTimeHasCome) {
  const Deadline deadline = 2ms;
  std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), 0ns);
}

TEST(Deadline, ZeroAndBelowHaveExpired) {
  for (const Deadline& deadline :
       {Deadline(0s), Deadline(-1ns), Deadline(std::chrono::hours::min()),
        Deadline(Nanoseconds::min()), Deadline(std::chrono::duration<double>(-1e300))}) {
    EXPECT_TRUE(deadline.is_set());
    EXPECT_FALSE(deadline.is_none());
    EXPECT_TRUE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), 0ns);
  }
}

TEST(Deadline, HugeDurationsSaturateToNone) {
  EXPECT_TRUE(Deadline(std::chrono::hours::max()).is_none());
  EXPECT_TRUE(Deadline(std::chrono::years::max()).is_none());
  EXPECT_TRUE(Deadline(Nanoseconds::max()).is_none());
  EXPECT_TRUE(Deadline(std::chrono::duration<double>(1e30)).is_none());
  EXPECT_TRUE(
      Deadline(std::chrono::duration<double>(std::numeric_limits<double>::infinity())).is_none());
  // The sum with the clock's current time must not overflow.
  EXPECT_TRUE(Deadline::after(Clock::time_point::max() - Clock::now() + 1s).is_none());
  EXPECT_FALSE(Deadline(std::chrono::hours(24 * 365 * 100)).is_none());
}

TEST(Deadline, NotANumberHasExpired) {
  const Deadline deadline = std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(deadline.is_set());
  EXPECT_TRUE(deadline.expired());
}

TEST(Deadline, SaturateClampsAndKeepsWhatFits) {
  static_assert(Deadline::saturate(3s) == 3'000'000'000ns);
  static_assert(Deadline::saturate(1ns) == 1ns);
  static_assert(Deadline::saturate(std::chrono::duration<double>(0.5)) == 500ms);
  static_assert(Deadline::saturate(-3s) == 0ns);
  static_assert(Deadline::saturate(std::chrono::hours::max()) == Nanoseconds::max());
  using Picoseconds = std::chrono::duration<std::int64_t, std::pico>;
  static_assert(Deadline::saturate(Picoseconds(1'999)) == 1ns);
}

TEST(Deadline, AtKeepsItsMoment) {
  const auto when = Clock::now() + 3s;
  EXPECT_EQ(Deadline::at(when).time(), when);
  EXPECT_TRUE(Deadline::at(Clock::now() - 1s).expired());
  EXPECT_TRUE(Deadline::at(Clock::time_point::max()).is_none());
}

}  // namespace
}  // namespace tutti
