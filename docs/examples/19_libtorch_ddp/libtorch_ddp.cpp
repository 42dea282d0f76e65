// Trains a module of LibTorch on 1 and 2 ranks with the same batches. The loss curves are the same.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <tutti/adapters/torch/ddp.hpp>
#include <tutti/tutti.hpp>

namespace {

constexpr std::int64_t rows_of_batch = 32;  // Of all ranks together.
constexpr int steps = 200;

/// A rank's part of a batch: points of a square, labelled by whether they lie in a disc.
struct Batch {
  Batch(int step, const tutti::ProcessGroup& group) {
    const std::int64_t rows = rows_of_batch / group.size();
    const auto n = torch::arange(rows, torch::kDouble) + step * rows_of_batch + group.rank() * rows;
    points = torch::stack({n * 0.7548776662, n * 0.5698402910}, 1).remainder(1) * 2 - 1;
    labels = (points.square().sum(1, true) < 0.64).to(torch::kDouble);
  }
  torch::Tensor points;  // [rows, 2]
  torch::Tensor labels;  // [rows, 1]
};

torch::nn::Sequential make_network(int seed) {
  torch::nn::Sequential network(torch::nn::Linear(2, 16), torch::nn::Tanh(),
                                torch::nn::Linear(16, 1));
  network->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (const auto& p : network->parameters())  // The same numbers with every version of torch.
    p.copy_(torch::sin(torch::arange(p.numel(), torch::kDouble) * 1.7 + seed).view(p.sizes()));
  return network;
}

/// Returns the loss of each step over the whole batch.
std::vector<double> train(tutti::ProcessGroup& group) {
  std::vector<double> losses;
  auto network = make_network(group.rank());  // Rank 0's parameters count.
  tutti::libtorch::DistributedDataParallel model(group, *network);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    const Batch batch(step, group);
    optimizer.zero_grad();
    const auto loss = torch::binary_cross_entropy_with_logits(model(batch.points), batch.labels);
    loss.backward();  // The gradients are now those of the whole batch.
    optimizer.step();
    losses.push_back(tutti::all_reduce_number(group, loss.item<double>(), tutti::ReduceOp::avg));
  }
  return losses;
}

}  // namespace

int main() {
  std::vector<std::vector<double>> curves;
  for (const int size : {1, 2}) {
    const auto store = tutti::make_memory_store();
    std::vector<double> curve;
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < size; ++rank)
        ranks.emplace_back([&, rank] {
          auto group = tutti::ProcessGroup::create(
              {.backend = "local", .store = store, .rank = rank, .size = size});
          auto losses = train(group);
          if (rank == 0) curve = std::move(losses);
        });
    }
    curves.push_back(curve);
  }
  std::printf("step     1 rank    2 ranks\n");
  double most = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    if (step % 40 == 39 || step == 0)
      std::printf("%4zu %10.6f %10.6f\n", step + 1, curves[0][step], curves[1][step]);
    most = std::max(most, std::abs(curves[0][step] - curves[1][step]));
  }
  std::printf("the curves are %s\n", most < 1e-9 ? "equal" : "different");
}
