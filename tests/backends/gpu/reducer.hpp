#pragma once

#include <cstdint>
#include <vector>

#include "rank.hpp"

// The exchange of a training step's gradients by GradientReducer. torch_control.py measures torch's
// DistributedDataParallel with the same gradients.

namespace tutti::gpu {

/// The numbers of elements of 160 f32 gradients: 256 to 524288, of 53 MiB in all.
std::vector<std::int64_t> gradient_counts();

struct ReducerTime {
  double device_us = 0;  ///< Of a step, between events: the median.
  double host_us = 0;    ///< Until finish() has returned.
  std::int64_t wrong = 0;
};
/// Called by all ranks. @throws Error.
ReducerTime measure_reducer(const Rank& here, const std::vector<std::int64_t>& counts, int steps);

}  // namespace tutti::gpu
