#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <tutti/group_options.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/metrics.hpp>
#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

// Losses of one class over the rows of all ranks, value and gradient, from float logits. Arguments:
// rows and positives of all ranks together. The benchmarks `.../ranks:W` compute the same batch on
// W ranks that are threads of this process, over the backend local; the others on one process
// without a group. At the end are metrics, and one sort of the rows.

namespace {

using tutti::losses::Batch;

/// A batch. The positives are spread evenly, because some losses divide the work by them.
struct Batch {
  explicit Batch(const benchmark::State& state)
      : logits(static_cast<std::size_t>(state.range(0))), targets(logits.size()) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (auto& logit : logits) logit = normal(random);
    for (std::int64_t i = 0; i < state.range(1); ++i)
      targets[static_cast<std::size_t>(state.range(0) * i / state.range(1))] = 1;
  }
  /// The rows of rank `rank` of `ranks`.
  Batch part(std::size_t rank, std::size_t ranks) const {
    const std::size_t first = logits.size() * rank / ranks;
    const std::size_t count = logits.size() * (rank + 1) / ranks - first;
    return {{logits.data() + first, tutti::DType::f32, {static_cast<std::int64_t>(count), 1}},
            std::span(targets).subspan(first, count)};
  }
  std::vector<float> logits;
  std::vector<std::int64_t> targets;
};

void of_one_process(benchmark::State& state, const Batch& batch, auto loss) {
  for (auto _ : state) {
    auto result = loss(batch.part(0, 1));
    benchmark::DoNotOptimize(result.grad.data());
  }
}

/// Measures from the moment when all ranks start until the last one has its result.
void of_ranks(benchmark::State& state, const Batch& batch, auto make) {
  const auto ranks = static_cast<std::size_t>(state.range(2));
  std::vector<tutti::GroupOptions> options(ranks);
  const auto store = tutti::make_memory_store();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    options[rank].backend = "local";
    options[rank].store = store;
    options[rank].rank = static_cast<int>(rank);
    options[rank].size = static_cast<int>(ranks);
  }
  auto groups = tutti::ProcessGroup::create_all(options);
  std::barrier round(static_cast<std::ptrdiff_t>(ranks + 1));
  std::atomic<bool> over = false;
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto loss = make();
      for (round.arrive_and_wait(); !over; round.arrive_and_wait()) {
        auto result = loss(groups[rank], batch.part(rank, ranks));
        benchmark::DoNotOptimize(result);
        round.arrive_and_wait();
      }
    });
  for (auto _ : state) {
    round.arrive_and_wait();
    round.arrive_and_wait();
  }
  over = true;
  round.arrive_and_wait();
}

/// Registers a loss under its name, without a group and with groups of 1, 2 and 4 ranks.
void add(const std::string& name, auto make) {
  using Counts = std::vector<std::int64_t>;
  const std::vector<Counts> sizes{{12'000, 3'000}, {1'000'000, 50'000}};
  auto* alone = benchmark::RegisterBenchmark(name.c_str(), [make](benchmark::State& state) {
    of_one_process(state, Batch(state), make());
  });
  auto* together = benchmark::RegisterBenchmark(
      (name + "_of_ranks").c_str(),
      [make](benchmark::State& state) { of_ranks(state, Batch(state), make); });
  alone->Unit(benchmark::kMillisecond);
  together->ArgNames({"", "", "ranks"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const Counts& size : sizes) {
    alone->Args(size);
    for (const std::int64_t ranks : {1, 2, 4}) together->Args({size[0], size[1], ranks});
  }
}

// Focal losses of one process. gamma 2 computes a power per element, gamma 0 is cross-entropy.

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

/// The measure of the metrics: one thread sorts the rows by score.
void sort(benchmark::State& state) {
  const Batch batch(state);
  std::vector<std::pair<float, std::int64_t>> rows;
  for (std::size_t i = 0; i < batch.logits.size(); ++i)
    rows.emplace_back(batch.logits[i], batch.targets[i]);
  for (auto _ : state) {
    auto sorted = rows;
    std::ranges::sort(sorted);
    benchmark::DoNotOptimize(sorted.data());
  }
}

void binary_metrics(benchmark::State& state) {
  of_ranks(state, Batch(state), [] {
    return [](tutti::ProcessGroup& group, const Batch& batch) {
      tutti::metrics::ScoredRows rows;
      rows.add(batch.logits, batch.targets);
      return tutti::metrics::binary_metrics(group, rows, {.precisions = {0.9}, .quantiles = {0.5}});
    };
  });
}

BENCHMARK(sort)->Args({1'000'000, 50'000})->Unit(benchmark::kMillisecond);
BENCHMARK(binary_metrics)
    ->ArgsProduct({{1'000'000}, {50'000}, {1, 2, 4}})
    ->ArgNames({"", "", "ranks"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  using namespace tutti::losses;
  add("smooth_ap", [] { return SmoothAp({.temperature = 0.01}); });
  add("recall_at_quantile", [] { return RecallAtQuantile({.quantile = 0.005}); });
  add("p_auc_trapezoid", [] { return PAucAtBudget({.knots = 8}); });
  add("p_auc_pairwise",
      [] { return PAucAtBudget({.surrogate = PAucAtBudgetOptions::Surrogate::pairwise}); });
  add("cross_entropy", [] { return CrossEntropy({.classes = 1}); });
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
