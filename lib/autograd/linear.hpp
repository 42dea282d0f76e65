#pragma once

#include <cstddef>

#include "autograd/step.hpp"

namespace tutti::internal {

inline std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.shape().numel());
}

/// The factor of a linear reduction in its transpose, where the gradient has only been moved or
/// summed: avg divides it by the number of ranks, premul_sum multiplies it by this rank's scale.
void scale_gradient(ReduceOp op, int ranks, Tensor& grad);

/// True when an avg of the backend divides by the number of ranks: the host cannot reach a gradient
/// on a device.
bool averages_on_device(ProcessGroup& group, ReduceOp op);

/// Fills `out` with zeros, and with `part` from byte `at` on.
void pad_with_zeros(const Step& step, Tensor& out, std::size_t at, const ConstTensorView& part);

}  // namespace tutti::internal
