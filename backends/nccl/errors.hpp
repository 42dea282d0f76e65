#pragma once

#include <tutti/error.hpp>

#include "nccl.hpp"

namespace tutti::backend::nccl {

/// What `call` of the CUDA runtime answered. Errors after which nothing works in this process any
/// more say so.
Error cuda_error(const CudaApi& cuda, cudaError_t code, const char* call);
/// What `call` of NCCL answered, with NCCL's last text.
Error nccl_error(const NcclApi& nccl, ncclResult_t code, const char* call);

inline void check(const CudaApi& cuda, cudaError_t code, const char* call) {
  if (code != cudaSuccess) [[unlikely]]
    throw cuda_error(cuda, code, call);
}
/// A communicator that does not block answers ncclInProgress where it goes on by itself.
inline void check(const NcclApi& nccl, ncclResult_t code, const char* call) {
  if (code != ncclSuccess && code != ncclInProgress) [[unlikely]]
    throw nccl_error(nccl, code, call);
}

}  // namespace tutti::backend::nccl
