#include <cstdint>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <tutti/losses/focal.hpp>

// Focal losses of one process, value and gradient, from float logits; arguments: elements, or rows
// and classes. gamma 2 computes a power per element, gamma 0 is cross-entropy.

namespace {

std::vector<float> logits_of(std::int64_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<std::size_t>(count));
  for (auto& logit : logits) logit = normal(random);
  return logits;
}

void sigmoid_focal(benchmark::State& state) {
  const auto logits = logits_of(state.range(0));
  std::vector<float> targets(logits.size());
  for (std::size_t i = 0; i < targets.size(); i += 20) targets[i] = 1;
  const tutti::losses::SigmoidFocal loss({.gamma = static_cast<double>(state.range(1))});
  for (auto _ : state) {
    auto result = loss(logits, targets);
    benchmark::DoNotOptimize(result.grad.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void softmax_focal(benchmark::State& state) {
  const auto rows = state.range(0);
  const auto classes = state.range(1);
  const auto logits = logits_of(rows * classes);
  std::vector<std::int64_t> targets(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < targets.size(); ++i)
    targets[i] = static_cast<std::int64_t>(i) % classes;
  const tutti::losses::SoftmaxFocal loss({.gamma = static_cast<double>(state.range(2))});
  const tutti::ConstTensorView view(logits.data(), tutti::DType::f32, {rows, classes});
  for (auto _ : state) {
    auto result = loss(view, targets);
    benchmark::DoNotOptimize(result.grad.data());
  }
  state.SetItemsProcessed(state.iterations() * rows * classes);
}

BENCHMARK(sigmoid_focal)
    ->ArgsProduct({{10'000, 1'000'000}, {0, 2}})
    ->ArgNames({"elements", "gamma"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(softmax_focal)
    ->ArgsProduct({{10'000}, {20, 100}, {0, 2}})
    ->ArgNames({"rows", "classes", "gamma"})
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
