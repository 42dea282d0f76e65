// Three ranks with 3, 0 and 5 pairs train one layer of LibTorch for a step. The loss compares each
// row with the rows of all ranks. The gradient equals that of one process with all 8 pairs.

#include <cstdio>
#include <thread>
#include <vector>

#include <torch/torch.h>
#include <tutti/adapters/torch.hpp>
#include <tutti/tutti.hpp>

namespace {

namespace libtorch = tutti::libtorch;
using tutti::GradScale;

const std::vector<std::int64_t> rows{3, 0, 5};
constexpr std::int64_t features = 6;

// Returns the same numbers in every run.
torch::Tensor numbers(at::IntArrayRef sizes, double phase) {
  const auto count = torch::arange(sizes[0] * sizes[1], torch::kDouble);
  return torch::sin(count * 1.7 + phase).view(sizes);
}

struct Layer : torch::nn::Module {
  Layer() { weight = register_parameter("weight", numbers({features, 4}, 0.5)); }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::nn::functional::normalize(x.matmul(weight));
  }
  torch::Tensor weight;
};

// Row i of `anchors` belongs to row first + i of `candidates`; the other rows are its negatives.
torch::Tensor loss_of(const torch::Tensor& anchors, const torch::Tensor& candidates,
                      std::int64_t first) {
  const auto scores = anchors.matmul(candidates.t()) / 0.1;
  const auto right = torch::arange(first, first + anchors.size(0));
  return torch::nn::functional::cross_entropy(
      scores, right, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

struct Result {
  double loss;
  torch::Tensor gradient;
};

Result on_one_process(const torch::Tensor& left, const torch::Tensor& right) {
  Layer layer;
  const auto loss = loss_of(layer.forward(left), layer.forward(right), 0) / left.size(0);
  loss.backward();
  return {loss.item<double>(), layer.weight.grad()};
}

Result on_a_rank(tutti::ProcessGroup& group, const torch::Tensor& left,
                 const torch::Tensor& right) {
  Layer layer;
  const tutti::RowLayout rows = tutti::exchange_rows(group, left.size(0));
  const auto all = libtorch::all_gather_rows(group, layer.forward(right), GradScale::sum, rows);
  // This rank's part of the mean over all rows. A rank without rows has a loss of 0 and still takes
  // part in the backward of the gather.
  const auto loss = loss_of(layer.forward(left), all, rows.offset(group.rank())) / rows.total();
  loss.backward();

  // With GradScale::sum the gradients of the ranks add up to the gradient of the global loss.
  const torch::NoGradGuard no_grad;
  double total = loss.item<double>();
  const torch::Tensor gradient = layer.weight.grad();
  group.all_reduce(libtorch::mutable_view(gradient));
  group.all_reduce(std::span(&total, 1));
  return {total, gradient};
}

}  // namespace

int main() {
  const auto left = numbers({8, features}, 0);
  const auto right = left + 0.3 * numbers({8, features}, 2);
  const Result expected = on_one_process(left, right);
  std::printf("one process, 8 pairs: loss %.6f, |gradient| %.6f\n", expected.loss,
              expected.gradient.norm().item<double>());

  const int size = static_cast<int>(rows.size());
  const auto store = tutti::make_memory_store();
  std::vector<Result> results(rows.size());
  std::vector<std::jthread> ranks;
  std::int64_t first = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto own = rows[static_cast<std::size_t>(rank)];
    ranks.emplace_back([=, &results] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      results[static_cast<std::size_t>(rank)] =
          on_a_rank(group, left.narrow(0, first, own), right.narrow(0, first, own));
    });
    first += own;
  }
  ranks.clear();  // Joins the threads.

  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const double difference =
        (results[rank].gradient - expected.gradient).abs().max().item<double>();
    std::printf("rank %zu, %lld pairs:      loss %.6f, gradient %s\n", rank,
                static_cast<long long>(rows[rank]), results[rank].loss,
                difference < 1e-12 ? "equal to 1e-12" : "differs");
  }
}
