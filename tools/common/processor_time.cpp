#include "common/processor_time.hpp"

#include <ctime>

namespace tutti::tool {
namespace {

std::chrono::nanoseconds read(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);  // Cannot fail for these clocks.
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

std::chrono::nanoseconds thread_processor_time() {
  return read(CLOCK_THREAD_CPUTIME_ID);
}

std::chrono::nanoseconds process_processor_time() {
  return read(CLOCK_PROCESS_CPUTIME_ID);
}

}  // namespace tutti::tool
