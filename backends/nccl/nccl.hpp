#pragma once

#include <memory>

#include <tutti/backend.hpp>

#include "cuda/api.hpp"
#include "nccl_api.hpp"

namespace tutti::backend::nccl {

using cuda::CudaApi;

/// The libraries that a group talks to. Both outlive it, and every Work and Memory of it.
struct Apis {
  const NcclApi* nccl = nullptr;
  const CudaApi* cuda = nullptr;
};

/// A group over these libraries: what the table's entry makes with the real ones, and tests with
/// their own. Blocks until all ranks are there. @throws Error.
std::unique_ptr<Backend> make_nccl(const BackendInit& init, Apis apis);

}  // namespace tutti::backend::nccl
