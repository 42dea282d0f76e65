#pragma once

#include <cuda_runtime_api.h>

#include "cuda/api.hpp"
#include "values/library.hpp"

// The functions of the CUDA runtime that these programs use beside those of the backends.

namespace tutti::gpu {

/// field, function, parameters.
#define TUTTI_GPU_FUNCTIONS(X)                                                                    \
  X(event_synchronize, cudaEventSynchronize, (cudaEvent_t event))                                 \
  X(event_elapsed_time, cudaEventElapsedTime, (float* ms, cudaEvent_t from, cudaEvent_t to))      \
  X(device_get_default_mem_pool, cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device)) \
  X(mem_pool_destroy, cudaMemPoolDestroy, (cudaMemPool_t pool))                                   \
  X(mem_get_info, cudaMemGetInfo, (std::size_t * free, std::size_t * total))

struct CudaFunctions {
#define TUTTI_FIELD(field, function, parameters) cudaError_t(*field) parameters = nullptr;
  TUTTI_GPU_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD

  /// The time between two events, in microseconds. Waits for `to`. @throws Error.
  double elapsed_us(cudaEvent_t from, cudaEvent_t to) const {
    const backend::cuda::CudaApi& cuda = backend::cuda::cuda_api();
    float ms = 0;
    check(cuda, event_synchronize(to), "cudaEventSynchronize");
    check(cuda, event_elapsed_time(&ms, from, to), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  }
};

/// @throws Error unsupported, as cuda_api() does.
inline CudaFunctions load_cuda_functions() {
  const internal::Library library({"libcudart.so.13", "libcudart.so.12"},
                                  "install the CUDA runtime");
  CudaFunctions functions;
#define TUTTI_LOAD(field, function, parameters) library.load(functions.field, #function);
  TUTTI_GPU_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  return functions;
}

}  // namespace tutti::gpu
