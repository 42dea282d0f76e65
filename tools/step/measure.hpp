#pragma once

#include <cstdint>

#include <tutti/tensor.hpp>

#include "common/compute_loop.hpp"
#include "run/control.hpp"
#include "run/ranks.hpp"
#include "step/options.hpp"
#include "step/record.hpp"

namespace tutti::tool {

/// The part of one rank in a run: its gradients and its compute loop.
class StepBench {
 public:
  /// Collective. @param ranks_here  the ranks of this process.
  StepBench(Rank& rank, Control& control, const StepOptions& options, int ranks_here);

  /// Collective. Measures the steps of a new reducer with buckets of this size, in rounds that
  /// interleave the kinds of steps. The row is complete on rank 0.
  StepRow measure(std::int64_t bucket_bytes);

 private:
  Rank& rank_;
  Control& control_;
  const StepOptions& options_;
  int ranks_here_;
  ComputeLoop compute_;
  Tensor gradients_;  // Of all parameters in order; null if they live in the buckets.
};

}  // namespace tutti::tool
