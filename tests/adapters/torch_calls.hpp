#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/process_group.hpp>

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

/// Quarters between -1 and 1, the same in every run, with zeros, and ties between ranks.
at::Tensor pattern(at::IntArrayRef sizes, int seed);

}  // namespace tutti::test
