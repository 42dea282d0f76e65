#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/process_group.hpp>

#include "support/worlds.hpp"

namespace tutti::test {

using Tensors = std::vector<at::Tensor>;

/// A function of every rank's input, in two implementations.
struct TorchCall {
  std::string name;
  int least_ranks = 1;
  std::function<std::vector<std::int64_t>(int rank, int ranks)>
      sizes;  ///< Collective: the result of rank's input.
  std::function<at::Tensor(ProcessGroup& group, const at::Tensor& in)> on_ranks;
  /// Every rank's result from all inputs, in one process with torch's functions.
  std::function<Tensors(const Tensors& in)> at_once;
};

std::vector<TorchCall> torch_calls();

/// Some of worlds(), for tests whose calls others test over every backend.
std::vector<World> worlds_of_adapters();

/// Quarters between -1 and 1, the same in every run, with zeros, and ties between ranks.
at::Tensor pattern(at::IntArrayRef sizes, int seed);

/// A copy that requires grad.
at::Tensor leaf(const at::Tensor& values);
/// A loss that differs between ranks and is not linear: its gradient depends on the output.
at::Tensor loss_of(const at::Tensor& out, int rank);
/// On any device, with a tolerance for sums in another order.
void expect_near(const at::Tensor& actual, const at::Tensor& expected, const std::string& what);

Tensors inputs_of(const TorchCall& call, int ranks);
/// By the inputs of each rank: values, and the first and second derivatives of all losses' sum.
struct Derivatives {
  Tensors out, first, second;
};
/// torch's, in one process.
Derivatives derivatives_at_once(const TorchCall& call, const Tensors& inputs);
/// The call on ranks, with inputs on `device`, gives the same.
void expect_equals_one_process(const TorchCall& call, ProcessGroup& group, const Tensors& inputs,
                               const Derivatives& expected, c10::Device device = c10::kCPU);

}  // namespace tutti::test
