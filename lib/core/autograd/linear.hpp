#pragma once

#include <cstddef>

#include "autograd/step.hpp"

namespace tutti::internal {

inline std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.shape().numel());
}

/// Applies the factor of a linear reduction to a gradient that was only moved or summed: avg
/// divides by the number of ranks, premul_sum multiplies by this rank's scale.
void scale_gradient(ReduceOp op, int ranks, Tensor& grad);

/// True if the backend has to average a gradient, because the host cannot divide an array on a
/// device.
bool averages_on_device(ProcessGroup& group, ReduceOp op);

/// Fills `out` with zeros, then writes `part` from byte `at` on.
void pad_with_zeros(const Step& step, Tensor& out, std::size_t at, const ConstTensorView& part);

}  // namespace tutti::internal
