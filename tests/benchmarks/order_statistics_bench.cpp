#include <cstdint>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "losses/order_statistics.hpp"

// Order statistics of one list in one process; arguments: rows, positions, bytes of a key (4:
// floats).

namespace tutti::internal::losses {
namespace {

void order_statistics(benchmark::State& state) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> scores(static_cast<std::size_t>(state.range(0)));
  for (auto& score : scores) {
    score = normal(random);
    if (state.range(2) == 4) score = static_cast<float>(score);
  }
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < state.range(1); ++i)
    places.push_back((2 * i + 1) * state.range(0) / (2 * state.range(1)));
  const Select list{scores, places};
  for (auto _ : state)
    benchmark::DoNotOptimize(losses::order_statistics({&list, 1}, static_cast<int>(state.range(2)),
                                                      [](std::span<std::int64_t>) {}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(order_statistics)
    ->ArgsProduct({{10'000, 1'000'000}, {1, 16}, {4, 8}})
    ->ArgNames({"rows", "places", "bytes"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tutti::internal::losses

BENCHMARK_MAIN();
