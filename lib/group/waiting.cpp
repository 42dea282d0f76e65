#include "group/waiting.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include <fmt/format.h>

namespace tutti::internal {
namespace {

int operation(int wait_or_wake, Sharing sharing) noexcept {
  return sharing == Sharing::threads ? wait_or_wake | FUTEX_PRIVATE_FLAG : wait_or_wake;
}

}  // namespace

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
      "a rank that waits pauses {} times, yields up to {} times or {} ms, with pauses in the first "
      "{} us, and sleeps\nthese limits are fixed; there are no pauses if more than {} ranks run on "
      "this host\n",
      Polling::pauses, Polling::yields, Polling::yielding.count(), Polling::pausing.count(), cores);
}

}  // namespace tutti::internal
