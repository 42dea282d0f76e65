#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <fmt/format.h>

#include <tutti/init.hpp>

// The times of all_reduce with CallOptions::reproducible, divided by those of free sums. Two forms
// of data, because a kernel may be faster where no addend is rounded. For example
//   TUTTI_BACKEND=shm tutti run -n 2 reproducible_bench

namespace {

using Clock = std::chrono::steady_clock;
constexpr int rounds = 60;

std::vector<float> addends(int rank, std::size_t count, bool wide) {
  std::mt19937 random(static_cast<std::uint32_t>(rank + 1));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution exponent(-20, 20);
  std::vector<float> values(count);
  for (auto& x : values) x = wide ? std::ldexp(normal(random), exponent(random)) : normal(random);
  return values;
}

/// Returns the 20th percentile in microseconds.
double percentile(std::vector<double>& times) {
  std::ranges::sort(times);
  return times[times.size() / 5];
}

}  // namespace

int main() {
  auto world = tutti::init();
  for (const bool wide : {false, true}) {
    for (std::size_t bytes = 1024; bytes <= std::size_t{16} << 20; bytes *= 4) {
      const auto in = addends(world.rank(), bytes / sizeof(float), wide);
      auto out = in;
      const auto calls =
          static_cast<int>(std::clamp(std::size_t{4} << 20, bytes, 50 * bytes) / bytes);
      std::vector<double> times[2];
      for (int round = 0; round < 2 * rounds; ++round) {
        world.barrier();
        const auto begin = Clock::now();
        for (int i = 0; i < calls; ++i)
          world.all_reduce(in, out, tutti::ReduceOp::sum, {.reproducible = round % 2 == 1});
        const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
        times[round % 2].push_back(time.count() / calls);
      }
      const double free = percentile(times[0]);
      const double reproducible = percentile(times[1]);
      if (world.rank() == 0)
        fmt::print("{:>6} {:>9} B {:10.2f} us free {:10.2f} us reproducible, ratio {:.2f}\n",
                   wide ? "wide" : "normal", bytes, free, reproducible, reproducible / free);
    }
  }
}
