// Trains a small network on 1, 2 and 4 ranks with the same batches. The loss curves are the same.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/training.hpp>

#include "mlp.hpp"

namespace {

constexpr int steps = 300;
constexpr double rate = 0.5;

/// Returns the loss of each step, which is the same on all ranks.
std::vector<double> train(tutti::ProcessGroup& group, const std::vector<mlp::Point>& data) {
  mlp::Network<double> network({2, 16, 1}, group.rank());  // Rank 0's values count.
  // Two buckets, so that communication overlaps with the backward.
  tutti::ddp::GradientReducer reducer(group, network.parameters(),
                                      {.first_bucket_cap = 256, .average_over_rows = true});

  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto mine = mlp::part_of_batch(data, step, group);
    const auto rows = static_cast<double>(mine.size());
    const double sum = network.backward(
        mine, 1.0, [&](std::size_t id) { reducer.mark_ready(id, network.gradient(id)); });
    reducer.finish(rows);  // The gradients of the mean over the rows of all ranks.
    network.update(rate);
    losses.push_back(tutti::global_mean(group, sum, rows));
  }
  return losses;
}

}  // namespace

int main() {
  const auto data = mlp::make_spirals();
  std::vector<std::vector<double>> curves;
  for (const int size : {1, 2, 4}) {
    const auto store = tutti::make_memory_store();
    std::vector<double> curve;
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < size; ++rank)
        ranks.emplace_back([&, rank] {
          auto group = tutti::ProcessGroup::create(
              {.backend = "local", .store = store, .rank = rank, .size = size});
          auto losses = train(group, data);
          if (rank == 0) curve = std::move(losses);
        });
    }
    curves.push_back(curve);
  }
  std::printf("step     1 rank    2 ranks    4 ranks\n");
  for (std::size_t step = 0; step < steps; step = step == 0 ? 19 : step + 40)
    std::printf("%4zu %10.6f %10.6f %10.6f\n", step + 1, curves[0][step], curves[1][step],
                curves[2][step]);
  double most = 0;
  for (std::size_t step = 0; step < steps; ++step)
    for (const auto& curve : curves) most = std::max(most, std::abs(curve[step] - curves[0][step]));
  std::printf("the curves are %s\n", most < 1e-9 ? "equal" : "different");
}
