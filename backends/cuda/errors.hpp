#pragma once

#include <tutti/error.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// The error of `call` of the CUDA runtime. Errors after which nothing works in this process any
/// more say so.
Error cuda_error(const CudaApi& cuda, cudaError_t code, const char* call);

inline void check(const CudaApi& cuda, cudaError_t code, const char* call) {
  if (code != cudaSuccess) [[unlikely]]
    throw cuda_error(cuda, code, call);
}

}  // namespace tutti::backend::cuda
