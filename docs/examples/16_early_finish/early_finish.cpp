// Three ranks have 4, 2 and 1 batches. A Join keeps them in step until all have finished.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include <tutti/training.hpp>

namespace {

constexpr int ranks = 3;
constexpr std::array<int, ranks> batches_of{4, 2, 1};

/// Runs `body` on `size` ranks, which are threads of this process.
void on_ranks(int size, const std::function<void(tutti::ProcessGroup& group)>& body) {
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      body(group);
    });
}

// Part 1: each rank has its own loss of the one parameter p. On rank r the loss of a batch is
// (p - 8 (r + 1))^2 / 2, and its gradient is p - 8 (r + 1).

struct Step {
  int with_batch;
  double parameter;
};

std::vector<Step> train(tutti::ProcessGroup& group, bool by_initial_size) {
  std::vector<double> parameter{0};
  tutti::ddp::GradientReducer reducer(group, {{"p", parameter}}, {.gradient_as_bucket_view = true});
  tutti::ddp::Join join(reducer, {.divide_by_initial_world_size = by_initial_size});
  std::vector<Step> steps;
  const int batches = batches_of[static_cast<std::size_t>(group.rank())];
  int batch = 0;
  while (join.next(batch < batches)) {
    if (batch < batches) {
      const tutti::TensorView place = reducer.gradient(0);
      *static_cast<double*>(place.data) = parameter[0] - 8 * (group.rank() + 1);
      reducer.mark_ready(0, place);
      reducer.finish();
      ++batch;
    }
    // Ranks without a batch receive the reduced gradient too, so parameters stay equal.
    parameter[0] -= 0.5 * *static_cast<const double*>(reducer.gradient(0).data);
    steps.push_back({join.ranks_with_batch(), parameter[0]});
  }
  return steps;
}

// Part 2: the loss is over the rows of all ranks. A rank without a batch calls the loss with no
// rows.

/// Returns the loss of each step. A row is a number x with a label of 0 or 1; its logit is w x.
std::vector<double> train_with_global_loss(tutti::ProcessGroup& group) {
  std::vector<double> w{0};
  tutti::ddp::GradientReducer reducer(group, {{"w", w}});
  tutti::ddp::Join join(reducer, {.make_empty_steps = false});
  const tutti::losses::CrossEntropy loss;
  std::vector<double> losses;
  const auto step_of = [&] { return static_cast<int>(losses.size()); };
  const auto has_batch = [&] {
    // A single process takes the rows of all three ranks.
    return step_of() < (group.size() == 1 ? 4 : batches_of[static_cast<std::size_t>(group.rank())]);
  };
  while (join.next(has_batch())) {
    std::vector<double> x;
    std::vector<std::int64_t> labels;
    for (int r = 0; r < ranks; ++r) {
      const bool mine = group.size() == 1 || group.rank() == r;
      if (!mine || step_of() >= batches_of[static_cast<std::size_t>(r)]) continue;
      for (int row = 0; row <= r; ++row) {  // Rank r has r + 1 rows per batch.
        x.push_back(0.5 * (row + 1) * (r % 2 == 0 ? 1 : -1));
        labels.push_back(r % 2 == 0 ? 1 : 0);
      }
    }
    std::vector<double> logits;
    for (const double v : x) logits.push_back(w[0] * v);
    const auto result =
        loss(group, {.logits = tutti::view(logits, {std::ssize(logits), 1}), .targets = labels});
    std::vector<double> gradient{0};
    for (std::size_t i = 0; i < x.size(); ++i)
      gradient[0] += static_cast<const double*>(result.grad.data())[i] * x[i];
    if (has_batch()) {
      reducer.mark_ready(0, gradient);
      reducer.finish();
    } else {
      reducer.step_empty();
    }
    w[0] -= *static_cast<const double*>(reducer.gradient(0).data);
    losses.push_back(result.loss);
  }
  return losses;
}

}  // namespace

int main() {
  std::vector<Step> initial;
  std::vector<Step> effective;
  std::vector<double> together;
  std::vector<double> alone;
  on_ranks(ranks, [&](tutti::ProcessGroup& group) {
    const auto by_initial = train(group, true);
    const auto by_effective = train(group, false);
    const auto losses = train_with_global_loss(group);
    if (group.rank() != 0) return;
    initial = by_initial;
    effective = by_effective;
    together = losses;
  });
  on_ranks(1, [&](tutti::ProcessGroup& group) { alone = train_with_global_loss(group); });

  std::printf("                          divided by the ranks\n");
  std::printf("step  ranks with a batch  at the start  with a batch\n");
  for (std::size_t i = 0; i < initial.size(); ++i)
    std::printf("%4zu  %18d  %12.4f  %12.4f\n", i, initial[i].with_batch, initial[i].parameter,
                effective[i].parameter);
  std::printf("\nstep  loss of 3 ranks  loss of 1 process\n");
  for (std::size_t i = 0; i < together.size(); ++i)
    std::printf("%4zu  %15.6f  %17.6f\n", i, together[i], alone[i]);
}
