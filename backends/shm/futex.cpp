#include "futex.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace tutti::backend::shm {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::chrono::nanoseconds time) noexcept {
  const auto count = std::max<std::chrono::nanoseconds::rep>(time.count(), 0);
  const timespec span{.tv_sec = static_cast<time_t>(count / 1'000'000'000),
                      .tv_nsec = static_cast<long>(count % 1'000'000'000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &span, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Polling::yield() noexcept {
  ::sched_yield();
}

}  // namespace tutti::backend::shm
