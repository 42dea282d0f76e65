// The twins of the introduction "DistributedDataParallel in PyTorch". Each process is a rank, as
// there: run it with `tutti run` or with any other launcher.

#include <cstdio>
#include <string>
#include <vector>

#include <tutti/training.hpp>

#include "seeds.hpp"

namespace {

using tutti::ddp::GradientReducer;

constexpr int inputs = 10;

/// True if DDP has copied rank 0's parameters, whose seed is 0, to this rank.
bool has_parameters_of_rank_0(tutti::ProcessGroup& group, const seeds::Linear& model) {
  const std::vector<float> x = seeds::randn(inputs, 7);
  return model(x) == seeds::Linear(group, inputs, 1, 0)(x);
}

void print(const char* what, bool same) {
  std::printf("%-22s the parameters are%s those of rank 0\n", what, same ? "" : " not");
}

tutti::ProcessGroup init_process_group(const std::string& backend, const std::string& name) {
  return tutti::init({.group = {.backend = backend, .name = name}});  // And a device per process.
}

// "import torch", under "Syntax".
void syntax(const std::string& backend) {
  auto group = init_process_group(backend, "syntax");
  seeds::Linear model(group, inputs, 1, group.rank());
  const GradientReducer ddp(group, model.parameters());
  print("syntax", has_parameters_of_rank_0(group, model));
}

// "model = DDP(model, device_ids=[0])": a group of one rank on the first device.
void on_device_0(const std::string& backend) {
  auto group = tutti::init({.rank = 0,
                            .size = 1,
                            .group = {.backend = backend, .device = seeds::device_of(backend, 0)}});
  seeds::Linear model(group, inputs, 1, 0);
  const GradientReducer ddp(group, model.parameters());
  print("on_device_0", has_parameters_of_rank_0(group, model));
}

// "model = DDP(model, device_ids=[rank], output_device=rank)": the group has the device.
void on_device_of_rank(const std::string& backend) {
  auto group = init_process_group(backend, "device of rank");
  seeds::Linear model(group, inputs, 1, group.rank());
  const GradientReducer ddp(group, model.parameters());
  print("on_device_of_rank", has_parameters_of_rank_0(group, model));
}

// "dist.init_process_group(backend='gloo', init_method='env://')".
void gloo_from_environment() {
  auto group = tutti::init({.group = {.backend = "gloo", .name = "env"}});
  group.barrier();
  std::printf("gloo_from_environment  a group on %s\n", group.backend().c_str());
}

// "import os", under "Sample Model".
void sample_model(const std::string& backend) {
  auto group = tutti::init({.rank = 0,
                            .size = 1,
                            .group = {.backend = backend, .device = seeds::device_of(backend, 0)}});
  seeds::Linear model(group, inputs, 1, 0);
  GradientReducer ddp(group, model.parameters());
  const auto x = seeds::randn(5 * inputs, 1);
  const auto targets = seeds::randn(5, 2);

  model.zero_grad();
  const auto outputs = model(x);
  const seeds::Loss loss = seeds::mse(outputs, targets);
  model.backward(x, loss.grad, &ddp);
  model.step(0.01F);
  std::printf("Loss after one step:   %.4f\n", loss.loss);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "gloo";
  syntax(backend);
  on_device_0(backend);
  on_device_of_rank(backend);
  gloo_from_environment();
  sample_model(backend);
}
