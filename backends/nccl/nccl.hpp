#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <tutti/backend/backend.hpp>

#include "cuda/api.hpp"
#include "cuda/driver_api.hpp"
#include "nccl_api.hpp"

namespace tutti::backend::nccl {

using cuda::CudaApi;
using cuda::DriverApi;

/// The libraries that a group talks to. They outlive it, and every Work and Memory of it.
struct Apis {
  const NcclApi* nccl = nullptr;
  const CudaApi* cuda = nullptr;
  const DriverApi* driver = nullptr;        ///< For the kernels; null where there are none.
  std::span<const std::byte> fold_image{};  ///< cuda::fold_image(), or a test's own.
};

/// A group over these libraries: what the table's entry makes with the real ones, and tests with
/// their own. Blocks until all ranks are there. @throws Error.
std::unique_ptr<Backend> make_nccl(const BackendInit& init, Apis apis);

}  // namespace tutti::backend::nccl
