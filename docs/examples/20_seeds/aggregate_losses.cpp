// The twins of "How can I aggregate losses from all GPUs in DistributedDataParallel?": three loops
// that train on each rank and print the loss of all ranks.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/training.hpp>

#include "seeds.hpp"

namespace {

using seeds::Linear;

constexpr int world_size = 2;  // torch.cuda.device_count()
constexpr std::int64_t local_batch_size = 32;
constexpr int accumulation_steps = 4;

/// A rank's rows, the same in every step.
struct Batch {
  explicit Batch(int rank)
      : inputs(seeds::randn(local_batch_size * 10, 1 + rank)),
        targets(seeds::randint(2, local_batch_size, 1 + rank)) {}
  std::vector<float> inputs;          // [32, 10]
  std::vector<std::int64_t> targets;  // [32]
};

/// nn.CrossEntropyLoss. Without a group it is the loss of this rank's rows.
tutti::losses::LossResult criterion(const std::vector<float>& outputs, const Batch& batch) {
  static const tutti::losses::CrossEntropy loss({.classes = 2});
  return loss({tutti::view(outputs, {local_batch_size, 2}), batch.targets});
}

void print(const tutti::ProcessGroup& group, int i, double global_loss) {
  if (group.rank() == 0 && (i == 0 || i == 9))
    std::printf("Epoch: %d, Global Loss: %.4f\n", i, global_loss);
}

// Example 1, "import torch".
void basic_loss_aggregation(tutti::ProcessGroup& group) {
  Linear model(group, 10, 2, group.rank());
  const Batch batch(group.rank());
  for (int i = 0; i < 10; ++i) {
    model.zero_grad();
    const auto outputs = model(batch.inputs);
    const auto local_loss = criterion(outputs, batch);
    model.backward(batch.inputs, local_loss.grad.values<float>());
    model.step(0.01F);

    auto reduced_loss = seeds::to_rank<double>(group, std::span(&local_loss.loss, 1), {});
    group.all_reduce(reduced_loss, tutti::ReduceOp::sum);
    print(group, i, seeds::cpu<double>(group, reduced_loss)[0] / group.size());
  }
}

// Example 2, "import torch".
void manual_loss_accumulation(tutti::ProcessGroup& group) {
  Linear model(group, 10, 2, group.rank());
  const Batch batch(group.rank());
  tutti::LossAccumulator total_loss;
  for (int i = 0; i < 10; ++i) {
    model.zero_grad();  // Once per step: backward() adds.
    for (int j = 0; j < accumulation_steps; ++j) {
      const auto outputs = model(batch.inputs);
      auto local_loss = criterion(outputs, batch);
      for (float& g : local_loss.grad.values<float>()) g /= accumulation_steps;
      model.backward(batch.inputs, local_loss.grad.values<float>());
      total_loss.add("train", local_loss.loss, local_batch_size);
    }
    model.step(0.01F);
    print(group, i, total_loss.reduce(group)[0].second);  // The mean over rows, and the reset.
  }
}

// Example 3, "import torch".
void implicit_loss_handling(tutti::ProcessGroup& group) {
  Linear model(group, 10, 2, group.rank());
  tutti::ddp::GradientReducer ddp(group, model.parameters());  // All ranks have rank 0's values.
  const Batch batch(group.rank());
  for (int i = 0; i < 10; ++i) {
    double total_loss = 0;
    model.zero_grad();
    for (int j = 0; j < accumulation_steps; ++j) {
      const auto outputs = model(batch.inputs);
      auto local_loss = criterion(outputs, batch);
      for (float& g : local_loss.grad.values<float>()) g /= accumulation_steps;
      const bool last = j + 1 == accumulation_steps;  // The others add to this rank's gradients.
      model.backward(batch.inputs, local_loss.grad.values<float>(), last ? &ddp : nullptr);
      total_loss += local_loss.loss / accumulation_steps;
    }
    model.step(0.01F);
    print(group, i, tutti::all_reduce_number(group, total_loss, tutti::ReduceOp::avg));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "local";
  std::printf("Example 1\n");
  seeds::spawn(basic_loss_aggregation, world_size, backend);
  std::printf("Example 2\n");
  seeds::spawn(manual_loss_accumulation, world_size, backend);
  std::printf("Example 3\n");
  seeds::spawn(implicit_loss_handling, world_size, backend);
}
