#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

// Ranking losses of one process and one class, value and gradient, from float logits; arguments:
// rows and positives.

namespace {

struct Batch {
  explicit Batch(const benchmark::State& state)
      : logits(static_cast<std::size_t>(state.range(0))), targets(logits.size()) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (auto& logit : logits) logit = normal(random);
    std::fill_n(targets.begin(), state.range(1), std::int64_t{1});
  }
  tutti::losses::RankingBatch view() const {
    return {{logits.data(), tutti::DType::f32, {static_cast<std::int64_t>(logits.size()), 1}},
            targets};
  }
  std::vector<float> logits;
  std::vector<std::int64_t> targets;
};

template <typename Loss>
void measure(benchmark::State& state, Loss loss) {
  const Batch batch(state);
  for (auto _ : state) {
    auto result = loss(batch.view());
    benchmark::DoNotOptimize(result.grad.data());
  }
}

void smooth_ap(benchmark::State& state) {
  measure(state, tutti::losses::SmoothAp({.temperature = 0.01}));
}
void recall_at_quantile(benchmark::State& state) {
  measure(state, tutti::losses::RecallAtQuantile({.quantile = 0.005}));
}
void p_auc_trapezoid(benchmark::State& state) {
  measure(state, tutti::losses::PAucAtBudget({.knots = 8}));
}
void p_auc_pairwise(benchmark::State& state) {
  measure(state, tutti::losses::PAucAtBudget(
                     {.surrogate = tutti::losses::PAucAtBudgetOptions::Surrogate::pairwise}));
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({12'000, 3'000})->Args({1'000'000, 50'000})->Unit(benchmark::kMillisecond);
}
BENCHMARK(smooth_ap)->Apply(sizes);
BENCHMARK(recall_at_quantile)->Apply(sizes);
BENCHMARK(p_auc_trapezoid)->Apply(sizes);
BENCHMARK(p_auc_pairwise)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
