// The twins whose originals are about torch's own objects, with LibTorch's modules, autograd and
// optimizers. README.md has the list; the others need no LibTorch.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <tutti/adapters/torch.hpp>
#include <tutti/adapters/torch/ddp.hpp>
#include <tutti/adapters/torch/losses.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/training.hpp>

#include "seeds.hpp"

namespace {

namespace ddp = tutti::ddp;
namespace libtorch = tutti::libtorch;
using DdpModel = libtorch::DistributedDataParallel<torch::nn::LinearImpl>;

/// torch.randn(rows, columns), with the same values with every version of torch.
torch::Tensor randn(std::int64_t rows, std::int64_t columns, int seed) {
  return torch::tensor(seeds::randn(rows * columns, seed)).view({rows, columns});
}
torch::Tensor randint(std::int64_t classes, std::int64_t rows, int seed) {
  return torch::tensor(seeds::randint(classes, rows, seed));
}

/// nn.Linear, likewise.
torch::nn::Linear linear(std::int64_t inputs, std::int64_t outputs, int seed) {
  torch::nn::Linear model(inputs, outputs);
  const torch::NoGradGuard off;
  for (const auto& parameter : model->parameters())
    parameter.copy_(0.3 * randn(1, parameter.numel(), seed).view(parameter.sizes()));
  return model;
}

// A2, "from imbalanced_losses import SmoothAPLoss".
void explicit_manual_gather(tutti::ProcessGroup& group) {
  tutti::losses::SmoothAp loss_fn({.classes = 4, .pool = {.queue = 1024, .gather = false}});
  const std::int64_t rows = 8 + 8 * group.rank();
  auto model = linear(3, 4, 0);
  const auto logits = model(randn(rows, 3, group.rank()));

  const auto logits_global = libtorch::all_gather_with_grad(logits, &group);
  const auto targets_global = libtorch::all_gather_no_grad(randint(4, rows, group.rank()), &group);
  const auto loss = libtorch::loss_of(group, loss_fn, logits_global, targets_global);
  loss.backward();
  const double by_weight = model->weight.grad().abs().sum().item<double>();
  const double sum = tutti::sync_ddp(by_weight, &group, "sum");
  if (group.rank() == 0)
    std::printf("explicit_manual_gather      loss %.4f, gradients %s\n", loss.item<double>(),
                sum > 0 ? "on the model" : "lost");
}

// A5, "# Single GPU: no-op, returns tensor unchanged".
void confirm_distributed_setup(tutti::ProcessGroup& group) {
  const auto logits = randn(4, 4, 1);
  const auto logits_global = libtorch::all_gather_with_grad(logits, &group);
  std::printf("confirm_distributed_setup   logits_global is %slogits\n",
              logits_global.is_same(logits) ? "" : "not ");
}

// B3, "import torch".
void implicit_loss_handling(tutti::ProcessGroup& group) {
  constexpr int accumulation_steps = 4;
  auto model = linear(10, 2, group.rank());
  DdpModel ddp_model(group, *model);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const auto inputs = randn(32, 10, 1 + group.rank());
  const auto targets = randint(2, 32, 1 + group.rank());
  for (int i = 0; i < 10; ++i) {
    double total_loss = 0;
    optimizer.zero_grad();
    for (int j = 0; j < accumulation_steps; ++j) {
      const auto accumulating = j + 1 < accumulation_steps ? ddp_model.no_sync() : nullptr;
      const auto local_loss =
          torch::cross_entropy_loss(ddp_model(inputs), targets) / accumulation_steps;
      local_loss.backward();
      total_loss += local_loss.item<double>();
    }
    optimizer.step();
    const double global_loss = tutti::sync_ddp(total_loss, &group, "mean");
    if (group.rank() == 0 && (i == 0 || i == 9))
      std::printf("implicit_loss_handling      Epoch: %d, Global Loss: %.4f\n", i, global_loss);
  }
}

ddp::CommHook power_sgd() {
  return ddp::power_sgd_hook(
      std::make_shared<ddp::PowerSgdState>(ddp::PowerSgdOptions{.rank = 1, .start_step = 10}));
}

std::vector<tutti::TensorView> views(const torch::nn::Module& model) {
  std::vector<tutti::TensorView> views;
  for (const auto& parameter : model.parameters())
    views.push_back(libtorch::mutable_view(parameter));
  return views;
}

// C1 to C4, ">>> # fp16_compress_hook for compress gradients" and the three after it.
void register_hooks(tutti::ProcessGroup& group) {
  constexpr std::int64_t start_local_sgd = 100;
  auto subgroup = group.split(group.rank() / 2);
  const auto train = [&](const char* name, const ddp::CommHook& hook,
                         const ddp::HookWrapper& wrapper = {}, bool averages = false) {
    auto model = linear(16, 8, group.rank());
    DdpModel ddp_model(group, *model);
    libtorch::register_ddp_comm_hook(ddp_model, hook, wrapper);
    ddp::PeriodicModelAverager averager(group, 4, start_local_sgd);
    torch::optim::SGD optimizer(model->parameters(), 1);
    const auto x = randn(16, 16, 1 + group.rank());
    const auto y = randn(16, 8, 11 + group.rank());
    for (int step = 0; step < 201; ++step) {
      optimizer.zero_grad();
      torch::mse_loss(ddp_model(x), y).backward();
      optimizer.step();
      const torch::NoGradGuard off;
      if (averages) averager.average(views(*model));
    }
    const double loss = torch::mse_loss(model(x), y).item<double>();
    const double global_loss = tutti::sync_ddp(loss, &group, "mean");
    if (group.rank() == 0) std::printf("%-27s final loss %.2f\n", name, global_loss);
  };
  train("fp16_compress", ddp::fp16_compress_hook());
  train("power_sgd", power_sgd());
  train("post_local_sgd",
        ddp::post_local_sgd_hook(
            std::make_shared<ddp::PostLocalSgdState>(start_local_sgd, &*subgroup)),
        {}, true);
  train("fp16_around_power_sgd", power_sgd(), ddp::fp16_compress_wrapper);
}

// D5, "import os".
void sample_model(tutti::ProcessGroup& group) {
  auto model = linear(10, 1, 0);
  DdpModel ddp_model(group, *model);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const auto inputs = randn(5, 10, 1);
  const auto targets = randn(5, 1, 2);

  model->train();
  optimizer.zero_grad();
  const auto loss = torch::mse_loss(ddp_model(inputs), targets);
  loss.backward();
  optimizer.step();
  std::printf("sample_model                Loss after one step: %.4f\n", loss.item<double>());
}

}  // namespace

int main() {
  seeds::spawn(explicit_manual_gather, 2);
  seeds::spawn(confirm_distributed_setup, 1);
  seeds::spawn(implicit_loss_handling, 2);
  seeds::spawn(register_hooks, 4);
  seeds::spawn(sample_model, 1);
}
