#pragma once

#include <tutti/error.hpp>

#include "cuda/errors.hpp"
#include "gpu.hpp"

namespace tutti::backend::nccl {

using cuda::check;

/// What `call` of NCCL answered, with NCCL's last text.
Error nccl_error(const NcclApi& nccl, ncclResult_t code, const char* call);

/// A communicator that does not block answers ncclInProgress where it goes on by itself.
inline void check(const NcclApi& nccl, ncclResult_t code, const char* call) {
  if (code != ncclSuccess && code != ncclInProgress) [[unlikely]]
    throw nccl_error(nccl, code, call);
}

}  // namespace tutti::backend::nccl
