#include "backend/waiting.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <ctime>

#include <fmt/format.h>

#include "values/environment_switch.hpp"

namespace tutti::internal {
namespace {

int operation(int wait_or_wake, Sharing sharing) noexcept {
  return sharing == Sharing::threads ? wait_or_wake | FUTEX_PRIVATE_FLAG : wait_or_wake;
}

/// The time of one pause. Measured when it is first asked for, in 20 us.
std::chrono::duration<double, std::nano> time_of_pause() {
  static const auto time = [] {
    constexpr int count = 64;
    auto least = std::chrono::duration<double, std::nano>::max();
    // The least of several, because another program may have the core in between.
    for (int round = 0; round < 8; ++round) {
      const auto start = Polling::Clock::now();
      for (int i = 0; i < count; ++i) pause();
      least = std::min<decltype(least)>(least, Polling::Clock::now() - start);
    }
    return std::max(least / count, decltype(least)(1));
  }();
  return time;
}

/// The time for which a rank pauses in a row. By default that of 64 pauses, which suffice for most
/// answers, but no longer than a thread on the same core may be kept waiting.
std::chrono::nanoseconds polling_time() {
  static constexpr std::int64_t most = 1'000'000;
  const auto usual = std::min(64 * time_of_pause().count(), 2000.0);
  return std::chrono::nanoseconds(environment_number("TUTTI_POLL_NS", std::llround(usual), most));
}

}  // namespace

int Polling::pauses_in_a_row(std::chrono::nanoseconds poll) {
  const auto pauses = std::lround(polling_time() / (poll + time_of_pause()));
  return std::max(static_cast<int>(pauses), polling_time().count() > 0 ? 1 : 0);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::chrono::nanoseconds time, Sharing sharing) noexcept {
  const auto count = std::max<std::chrono::nanoseconds::rep>(time.count(), 0);
  const timespec span{.tv_sec = static_cast<time_t>(count / 1'000'000'000),
                      .tv_nsec = static_cast<long>(count % 1'000'000'000)};
  ::syscall(SYS_futex, &word, operation(FUTEX_WAIT, sharing), seen, &span, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word, Sharing sharing) noexcept {
  ::syscall(SYS_futex, &word, operation(FUTEX_WAKE, sharing), INT_MAX, nullptr, nullptr, 0);
}

void Polling::yield() noexcept {
  ::sched_yield();
}

std::string describe_polling(std::size_t cores) {
  return fmt::format(
      "a rank that waits pauses for {} ns (TUTTI_POLL_NS), {} pauses of {:.1f} ns measured here; "
      "then it\nyields up to {} times or {} ms, with pauses in the first {} us, and sleeps\nthere "
      "are no pauses if more than {} ranks run on this host\n",
      polling_time().count(), Polling::pauses_in_a_row(), time_of_pause().count(), Polling::yields,
      Polling::yielding.count(), Polling::pausing.count(), cores);
}

}  // namespace tutti::internal
