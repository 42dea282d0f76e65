// Preloaded into a rank: its wall clock is 5 s ahead.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" [[gnu::visibility("default")]] int clock_gettime(clockid_t clock,
                                                            struct timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += 5;
  return result;
}
