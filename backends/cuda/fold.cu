// The kernels for nvcc. fold_kernels.cpp launches them by these names.

#include "cuda/fold.hpp"

namespace {

__device__ std::uint64_t this_thread() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ std::uint64_t all_threads() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

}  // namespace

extern "C" __global__ void tutti_fold(tutti::backend::cuda::Fold fold) {
  tutti::backend::cuda::run_fold(fold, this_thread(), all_threads());
}

/// Writes `value`, a number from the host, to `to`. Does nothing if `to` is null.
extern "C" __global__ void tutti_put(double* to, double value) {
  if (to != nullptr && this_thread() == 0) *to = value;
}
