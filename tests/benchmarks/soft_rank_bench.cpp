#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "internal/losses/soft_rank.hpp"

// Forward and gradient of one class of a Smooth-AP, sort included: rows, positives, temperature in
// ten-thousandths, engine.

namespace tutti::internal::losses {
namespace {

void soft_rank(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const auto positives = static_cast<std::size_t>(state.range(1));
  const double temperature = static_cast<double>(state.range(2)) / 1e4;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<double> scores(rows);
  for (auto& score : scores) score = normal(random);
  std::vector<std::uint8_t> positive(rows);
  std::fill_n(positive.begin(), positives, std::uint8_t{1});
  std::vector<std::uint32_t> all(rows);
  std::iota(all.begin(), all.end(), 0U);
  for (auto _ : state) {
    SoftRank ranks(scores, positive, temperature, static_cast<SoftRank::Engine>(state.range(3)));
    std::vector<SoftRank::Sums> sums(ranks.anchors());
    ranks.sums(0, sums);
    std::vector<double> a(sums.size());
    std::vector<double> b(sums.size());
    for (std::size_t k = 0; k < sums.size(); ++k) {
      a[k] = sums[k].b / (sums[k].a * sums[k].a);
      b[k] = 1 / sums[k].a;
    }
    std::vector<SoftRank::Slopes> slopes(rows);
    ranks.slopes(a, b, all, slopes);
    benchmark::DoNotOptimize(slopes.data());
    state.SetLabel(ranks.engine() == SoftRank::Engine::cells     ? "cells"
                   : ranks.engine() == SoftRank::Engine::windows ? "windows"
                                                                 : "pairs");
  }
}

constexpr auto automatic = static_cast<std::int64_t>(SoftRank::Engine::automatic);
constexpr auto pairs = static_cast<std::int64_t>(SoftRank::Engine::pairs);
constexpr auto windows = static_cast<std::int64_t>(SoftRank::Engine::windows);
constexpr auto cells = static_cast<std::int64_t>(SoftRank::Engine::cells);

BENCHMARK(soft_rank)
    ->Args({12'000, 3'000, 100, pairs})
    ->Args({12'000, 3'000, 100, windows})
    ->Args({12'000, 3'000, 100, cells})
    ->ArgsProduct({{12'000}, {3'000}, {1, 10, 100, 1'000, 10'000}, {automatic}})
    ->ArgsProduct({{10'000, 100'000}, {500}, {100}, {automatic}})
    ->ArgsProduct({{100'000}, {5'000}, {100}, {automatic}})
    ->ArgsProduct({{1'000'000}, {50'000}, {10, 100, 1'000, 10'000}, {automatic, cells}})
    ->Args({1'000'000, 50'000, 1, automatic})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tutti::internal::losses

BENCHMARK_MAIN();
