#include "common/compute_loop.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

namespace tutti::tool {
namespace {

constexpr int calibrations = 5;
constexpr std::chrono::nanoseconds long_enough = std::chrono::milliseconds(5);

}  // namespace

std::chrono::nanoseconds thread_processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);  // Cannot fail for this clock.
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

ComputeLoop::ComputeLoop(std::chrono::nanoseconds duration) {
  if (duration.count() == 0) return;
  double fastest_ns = std::numeric_limits<double>::max();  // Of a round.
  std::int64_t n = 1000;
  for (int i = 0; i < calibrations;) {
    const auto start = thread_processor_time();
    run(n);
    const auto spent = thread_processor_time() - start;
    if (spent < long_enough) {
      n *= 2;
      continue;
    }
    fastest_ns = std::min(fastest_ns, static_cast<double>(spent.count()) / static_cast<double>(n));
    ++i;
  }
  rounds_ =
      std::max<std::int64_t>(std::llround(static_cast<double>(duration.count()) / fastest_ns), 1);
}

void ComputeLoop::run(std::int64_t rounds) noexcept {
  std::uint64_t x = state_;
  for (std::int64_t i = 0; i < rounds; ++i) {  // Each round needs the result of the last.
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
  }
  state_ = x;
}

}  // namespace tutti::tool
