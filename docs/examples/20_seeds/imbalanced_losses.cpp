// The twins of the page "Train with DDP" of imbalanced-losses: a ranking loss over the rows of all
// ranks, gathered by the loss or by hand.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <tutti/autograd.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/training.hpp>

#include "seeds.hpp"

namespace {

using seeds::Linear;
using tutti::losses::LossResult;
using tutti::losses::SmoothAp;

constexpr std::int64_t classes = 4;
constexpr std::int64_t features = 3;
constexpr std::int64_t rows_of_all = 24;

/// A rank's rows of the 24 of a step: one rank has all, of two ranks the first has 8.
struct Batch {
  Batch(const tutti::ProcessGroup& group, int step) {
    auto all_x = seeds::randn(rows_of_all * features, step);
    const auto all_targets = seeds::randint(classes, rows_of_all, step);
    for (std::size_t i = 0; i < all_targets.size(); ++i)  // Class c > 0 has a higher feature c - 1.
      if (all_targets[i] > 0)
        all_x[i * features + static_cast<std::size_t>(all_targets[i]) - 1] += 2;
    const std::int64_t cut = group.size() == 1 ? rows_of_all : rows_of_all / 3;
    const std::int64_t first = group.rank() == 0 ? 0 : cut;
    rows = group.rank() == 0 ? cut : rows_of_all - cut;
    x.assign(all_x.begin() + first * features, all_x.begin() + (first + rows) * features);
    targets.assign(all_targets.begin() + first, all_targets.begin() + first + rows);
  }
  std::int64_t rows;
  std::vector<float> x;               // [rows, features]
  std::vector<std::int64_t> targets;  // [rows]
};

/// The logits [rows, classes] and targets [rows] of a rank, in the group's memory.
struct OnRank {
  OnRank(tutti::ProcessGroup& group, const Linear& backbone, const Batch& batch)
      : logits(seeds::to_rank<float>(group, backbone(batch.x), {batch.rows, classes})),
        targets(seeds::to_rank<std::int64_t>(group, batch.targets, {batch.rows})) {}
  tutti::Tensor logits;
  tutti::Tensor targets;
};

struct Step {
  double loss;
  std::vector<float> by_logits;  // Of this rank's rows.
};

// "from imbalanced_losses import SmoothAPLoss", the first: the loss gathers.
Step auto_detection(tutti::ProcessGroup& group, const OnRank& at) {
  SmoothAp loss_fn({.classes = classes, .pool = {.queue = 1024}});
  const LossResult result = loss_fn(group, {at.logits, at.targets});
  return {result.loss, seeds::cpu<float>(group, result.grad)};
}

// "from imbalanced_losses import SmoothAPLoss", the second: the caller gathers.
Step explicit_manual_gather(tutti::ProcessGroup& group, const OnRank& at) {
  SmoothAp loss_fn({.classes = classes, .pool = {.queue = 1024, .gather = false}});
  const auto logits_global =
      tutti::autograd::all_gather_rows(group, at.logits, tutti::GradScale::sum);
  const auto targets_global = tutti::all_gather_rows(group, at.targets, logits_global.rows);
  const LossResult result = loss_fn(group, {logits_global.value, targets_global.data});
  const auto by_logits = logits_global.back(group, result.grad);  // loss.backward()
  return {result.loss, seeds::cpu<float>(group, by_logits.value)};
}

// "import pytorch_lightning as pl".
class MyModel {
 public:
  explicit MyModel(tutti::ProcessGroup& group)
      : backbone(group, features, classes, group.rank()),
        loss_fn_({.classes = classes, .pool = {.queue = 1024}}) {}
  LossResult training_step(tutti::ProcessGroup& group, const Batch& batch) {
    const OnRank at(group, backbone, batch);
    return loss_fn_(group, {at.logits, at.targets});
  }
  Linear backbone;

 private:
  SmoothAp loss_fn_;
};

/// The training loop, which Lightning's Trainer runs in the original.
void fit(tutti::ProcessGroup& group) {
  MyModel model(group);
  tutti::ddp::GradientReducer ddp(group, model.backbone.parameters());
  const auto evaluate = [&] {
    return auto_detection(group, OnRank(group, model.backbone, Batch(group, 0))).loss;
  };
  const double before = evaluate();
  for (int step = 1; step <= 10; ++step) {
    const Batch batch(group, step);
    const LossResult result = model.training_step(group, batch);
    model.backbone.zero_grad();
    model.backbone.backward(batch.x, seeds::cpu<float>(group, result.grad), &ddp);
    model.backbone.step(2);
  }
  const double after = evaluate();
  if (group.rank() == 0)
    std::printf("world size %d           loss %.3f before, %.3f after 10 steps\n", group.size(),
                before, after);
}

// "loss_fn = SmoothAPLoss(num_classes=4, gather_distributed=False)": the call without the group.
double opt_out(const Linear& backbone, const Batch& batch) {
  SmoothAp loss_fn({.classes = classes});
  const auto logits = backbone(batch.x);
  return loss_fn({tutti::view(logits, {batch.rows, classes}), batch.targets}).loss;
}

// "# Single GPU: no-op, returns tensor unchanged".
void confirm_distributed_setup(tutti::ProcessGroup& group) {
  const std::vector<float> logits = seeds::randn(8, 1);
  const auto here = seeds::to_rank<float>(group, logits, {8});
  const auto gathered = tutti::all_gather_rows(group, here);
  const bool copied =
      gathered.data.data() != here.data() && seeds::cpu<float>(group, gathered.data) == logits;
  std::printf("with one rank          %s\n", copied ? "a copy of the input" : "other");
}

void on_two_ranks(tutti::ProcessGroup& group) {
  const Linear backbone(group, features, classes, 0);
  const Batch batch(group, 0);
  const OnRank at(group, backbone, batch);
  const Step by_loss = auto_detection(group, at);
  const Step by_hand = explicit_manual_gather(group, at);
  double difference = 0;
  for (std::size_t i = 0; i < by_loss.by_logits.size(); ++i)
    difference = std::max(
        difference, std::abs(static_cast<double>(by_loss.by_logits[i] - by_hand.by_logits[i])));
  const double most = tutti::all_reduce_number(group, difference, tutti::ReduceOp::max);
  const double own = opt_out(backbone, batch);
  if (group.rank() != 0) return;
  std::printf("auto-detection         loss %.4f\n", by_loss.loss);
  std::printf("explicit manual gather loss %.4f, gradients %s\n", by_hand.loss,
              most < 1e-6 ? "equal" : "different");
  std::printf("opt out, on rank 0     loss %.4f\n", own);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "local";
  seeds::spawn(on_two_ranks, 2, backend);
  std::printf("\n");
  for (const int world_size : {1, 2}) seeds::spawn(fit, world_size, backend);
  std::printf("\n");
  seeds::spawn(confirm_distributed_setup, 1, backend);
}
