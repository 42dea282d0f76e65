// A rank of launch_times.py: makes the launcher's group and prints the moment at which its first
// barrier has ended, in seconds of the monotonic clock.

#include <ctime>

#include <fmt/format.h>

#include <tutti/tutti.hpp>

int main() {
  auto group = tutti::init();
  group.barrier();
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  fmt::print("barrier {:.6f}\n",
             static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}
