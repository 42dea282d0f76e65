#pragma once

#include <cstddef>

#include <tutti/maybe_owned.hpp>
#include <tutti/process_group.hpp>

namespace tutti::internal {

inline std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.shape().numel());
}

/// What the vjp of a linear reduction does to a gradient that has only been moved or summed: avg
/// divides it by the number of ranks, premul_sum multiplies it by this rank's scale.
void scale_gradient(ReduceOp op, int ranks, Tensor& grad);

/// Whether dividing by the number of ranks is left to an avg of the backend: the host cannot reach
/// a gradient on a device.
bool averages_on_device(ProcessGroup& group, ReduceOp op);

/// There, the sum of what the ranks have, `part` in the bytes of `out` from `at` on and zeros
/// elsewhere, divided by their number: an all_reduce.
void average_parts(ProcessGroup& group, Tensor& out, std::size_t at, const ConstTensorView& part,
                   const CallOptions& options);

void fill_with_zeros(ProcessGroup& group, Tensor& out, Stream stream);

/// A linear reduction in a group of one rank, and its vjp: the input itself, unless it is to be
/// scaled. No call.
MaybeOwned reduce_alone(ProcessGroup& group, const ConstTensorView& in, ReduceOp op, Memory& memory,
                        Stream stream);

}  // namespace tutti::internal
