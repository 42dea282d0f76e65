#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <ctime>
#include <numeric>
#include <random>
#include <span>
#include <thread>
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

double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

struct Times {
  double setup = 1e300, all = 1e300;
};

/// The work of one of `ranks` ranks on a thread: set-up of the whole pool, the sums of its share of
/// the anchors, the slopes of its rows.
Times work_of(std::size_t rank, std::size_t ranks, const Pool& pool, const benchmark::State& state,
              std::span<SoftRank::Sums> sums, std::barrier<>& meet) {
  const double start = processor_ms();
  const SoftRank soft(pool.scores, pool.positive, static_cast<double>(state.range(2)) / 1e4,
                      static_cast<SoftRank::Engine>(state.range(3)));
  const double setup = processor_ms() - start;
  const auto [first, last] = soft.share(static_cast<int>(rank), static_cast<int>(ranks));
  soft.sums(first, sums.subspan(first, last - first));
  meet.arrive_and_wait();
  const Weights weights(sums);
  const auto begin = pool.rows.size() * rank / ranks;
  const auto end = pool.rows.size() * (rank + 1) / ranks;
  std::vector<SoftRank::Slopes> slopes(end - begin);
  soft.slopes(weights.a, weights.b, std::span(pool.rows).subspan(begin, end - begin), slopes);
  benchmark::DoNotOptimize(slopes.data());
  return {setup, processor_ms() - start};
}

/// Counters: processor time in ms of the slowest rank, the minimum of all rounds, in total and in
/// set-up, which every rank does alone. Time in which other programs ran is not in it.
void side_by_side(benchmark::State& state) {
  const auto pool = normal(state.range(0), state.range(1));
  const auto ranks = static_cast<std::size_t>(state.range(4));
  std::vector<SoftRank::Sums> sums(static_cast<std::size_t>(state.range(1)));
  std::vector<Times> smallest(ranks);
  std::barrier round(static_cast<std::ptrdiff_t>(ranks + 1));
  std::barrier meet(static_cast<std::ptrdiff_t>(ranks));
  std::atomic<bool> over = false;
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      for (round.arrive_and_wait(); !over; round.arrive_and_wait()) {
        const auto now = work_of(rank, ranks, pool, state, sums, meet);
        smallest[rank].setup = std::min(smallest[rank].setup, now.setup);
        smallest[rank].all = std::min(smallest[rank].all, now.all);
        round.arrive_and_wait();
      }
    });
  for (auto _ : state) {
    round.arrive_and_wait();
    round.arrive_and_wait();
  }
  over = true;
  round.arrive_and_wait();
  state.counters["all_ms"] = std::ranges::max(smallest, {}, &Times::all).all;
  state.counters["setup_ms"] = std::ranges::max(smallest, {}, &Times::setup).setup;
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

BENCHMARK(side_by_side)
    ->ArgsProduct({{40'000}, {4'000}, {100}, {pairs}, {1, 2}})
    ->ArgsProduct({{1'000'000}, {50'000}, {100}, {automatic}, {1, 2}})
    ->ArgNames({"rows", "positives", "temperature", "engine", "ranks"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tutti::internal::losses

BENCHMARK_MAIN();
