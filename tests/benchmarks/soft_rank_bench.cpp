#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "losses/soft_rank.hpp"

// One class of a Smooth-AP; arguments: rows, positives, temperature in ten-thousandths, engine.

namespace tutti::internal::losses {
namespace {

struct Pool {
  std::vector<double> scores;
  std::vector<std::uint8_t> positive;
  std::vector<std::uint32_t> rows;  // All rows.
};

Pool normal(std::int64_t rows, std::int64_t positives) {
  const auto count = static_cast<std::size_t>(rows);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  Pool pool{std::vector<double>(count), std::vector<std::uint8_t>(count),
            std::vector<std::uint32_t>(count)};
  for (auto& score : pool.scores) score = normal(random);
  std::fill_n(pool.positive.begin(), positives, std::uint8_t{1});
  std::iota(pool.rows.begin(), pool.rows.end(), 0U);
  return pool;
}

/// The numbers of each anchor that the gradient uses.
struct Weights {
  explicit Weights(std::span<const SoftRank::Sums> sums) : a(sums.size()), b(sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) {
      a[k] = sums[k].b / (sums[k].a * sums[k].a);
      b[k] = 1 / sums[k].a;
    }
  }
  std::vector<double> a, b;
};

const char* name_of(SoftRank::Engine engine) {
  return engine == SoftRank::Engine::cells     ? "cells"
         : engine == SoftRank::Engine::windows ? "windows"
                                               : "pairs";
}

/// Forward and gradient, sort included.
void soft_rank(benchmark::State& state) {
  const auto pool = normal(state.range(0), state.range(1));
  const double temperature = static_cast<double>(state.range(2)) / 1e4;
  for (auto _ : state) {
    const SoftRank ranks(pool.scores, pool.positive, temperature,
                         static_cast<SoftRank::Engine>(state.range(3)));
    std::vector<SoftRank::Sums> sums(ranks.anchors());
    ranks.sums(0, sums);
    const Weights weights(sums);
    std::vector<SoftRank::Slopes> slopes(ranks.rows());
    ranks.slopes(weights.a, weights.b, pool.rows, slopes);
    benchmark::DoNotOptimize(slopes.data());
    state.SetLabel(name_of(ranks.engine()));
  }
}

constexpr auto automatic = static_cast<std::int64_t>(SoftRank::Engine::automatic);
constexpr auto pairs = static_cast<std::int64_t>(SoftRank::Engine::pairs);
constexpr auto windows = static_cast<std::int64_t>(SoftRank::Engine::windows);
constexpr auto cells = static_cast<std::int64_t>(SoftRank::Engine::cells);

BENCHMARK(soft_rank)
    ->Args({12'000, 3'000, 100, pairs})
    ->ArgsProduct({{12'000}, {3'000}, {1, 3, 10, 30, 100}, {windows, cells}})
    ->ArgsProduct({{12'000}, {3'000}, {1, 10, 100, 1'000, 10'000}, {automatic}})
    ->ArgsProduct({{10'000, 100'000}, {500}, {100}, {automatic}})
    ->ArgsProduct({{100'000}, {5'000}, {100}, {automatic}})
    ->ArgsProduct({{1'000'000}, {50'000}, {1, 10, 100, 1'000, 10'000}, {automatic}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tutti::internal::losses

BENCHMARK_MAIN();
