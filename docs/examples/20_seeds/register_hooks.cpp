// The twins of the four registrations in the reference of pytorch_lightning.utilities.distributed.
// Each trains the same layer on four ranks.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include <tutti/training.hpp>

#include "seeds.hpp"

namespace {

namespace ddp = tutti::ddp;

// The originals begin after 5,000 and 1,000 steps; these train for 401.
constexpr std::int64_t start_power_sgd = 10;
constexpr std::int64_t start_local_sgd = 100;
constexpr int steps = 401;  // After the last one local SGD averages.
constexpr std::int64_t rows = 16, inputs = 16, outputs = 8;

/// One rank's model and reducer.
struct DdpModel {
  explicit DdpModel(tutti::ProcessGroup& ranks)
      : group(ranks),
        model(ranks, inputs, outputs, ranks.rank()),
        reducer(ranks, model.parameters()) {}
  tutti::ProcessGroup& group;
  seeds::Linear model;
  ddp::GradientReducer reducer;
  std::optional<ddp::PeriodicModelAverager> averager;
};

ddp::CommHook power_sgd() {
  return ddp::power_sgd_hook(std::make_shared<ddp::PowerSgdState>(
      ddp::PowerSgdOptions{.rank = 1, .start_step = start_power_sgd}));
}

void no_hook(DdpModel&) {}

// ">>> # fp16_compress_hook for compress gradients".
void fp16_compress(DdpModel& ddp_model) {
  ddp_model.reducer.set_hook(ddp::fp16_compress_hook());
}

// ">>> # powerSGD_hook".
void power_sgd(DdpModel& ddp_model) {
  ddp_model.reducer.set_hook(power_sgd());
}

// ">>> # post_localSGD_hook".
void post_local_sgd(DdpModel& ddp_model) {
  auto subgroup = ddp_model.group.split(ddp_model.group.rank() / 2);  // Two ranks each.
  ddp_model.reducer.set_hook(ddp::post_local_sgd_hook(
      std::make_shared<ddp::PostLocalSgdState>(start_local_sgd, &*subgroup)));
  ddp_model.averager.emplace(ddp_model.group, 4, start_local_sgd);  // Every 4 steps.
}

// ">>> # fp16_compress_wrapper combined with other communication hook".
void fp16_around_power_sgd(DdpModel& ddp_model) {
  ddp_model.reducer.set_hook(power_sgd(), ddp::fp16_compress_wrapper);
}

/// The bytes that this rank has given to the reductions over all ranks since the call `first`.
std::int64_t reduced_bytes(const tutti::ProcessGroup& group, std::uint64_t first) {
  std::int64_t bytes = 0;
  for (const tutti::TraceEntry& call : group.trace())
    if (call.seq >= first && call.name.starts_with("ddp bucket")) bytes += call.bytes;
  return bytes;
}

struct Result {
  double loss = 0;         // Of all ranks over the rows of all ranks.
  std::int64_t bytes = 0;  // Of the last step.
};
Result train(DdpModel& ddp_model) {
  const auto x = seeds::randn(rows * inputs, 1 + ddp_model.group.rank());
  const auto noise = seeds::randn(rows * outputs, 11 + ddp_model.group.rank());
  auto targets = seeds::Linear(ddp_model.group, inputs, outputs, 99)(x);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] += noise[i];
  Result result;
  for (int step = 0; step < steps; ++step) {
    const std::uint64_t first = ddp_model.group.trace().back().seq + 1;
    ddp_model.model.zero_grad();
    const auto loss = seeds::mse(ddp_model.model(x), targets);
    ddp_model.model.backward(x, loss.grad, &ddp_model.reducer);
    ddp_model.model.step(1.0F);
    result.bytes = reduced_bytes(ddp_model.group, first);
    if (!ddp_model.averager) continue;
    std::vector<tutti::TensorView> values;
    for (const auto& parameter : ddp_model.model.parameters()) values.push_back(parameter.value);
    ddp_model.averager->average(values);
  }
  result.loss = tutti::all_reduce_number(
      ddp_model.group, seeds::mse(ddp_model.model(x), targets).loss, tutti::ReduceOp::avg);
  return result;
}

}  // namespace

int main() {
  struct Registration {
    const char* name;
    void (*make)(DdpModel&);
  };
  for (const auto& [name, make] : {
           Registration{"no hook", no_hook},
           Registration{"fp16_compress_hook", fp16_compress},
           Registration{"power_sgd_hook", power_sgd},
           Registration{"post_local_sgd_hook", post_local_sgd},
           Registration{"fp16_compress_wrapper, power_sgd_hook", fp16_around_power_sgd},
       })
    seeds::spawn(
        [name = name, make = make](tutti::ProcessGroup& group) {
          DdpModel ddp_model(group);
          make(ddp_model);
          const auto [loss, bytes] = train(ddp_model);
          if (group.rank() == 0)
            std::printf("%-38s %3lld bytes per step, final loss %.2f\n", name,
                        static_cast<long long>(bytes), loss);
        },
        4);
}
