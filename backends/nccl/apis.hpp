#pragma once

#include <cstddef>
#include <span>

#include "cuda/api.hpp"
#include "cuda/driver_api.hpp"
#include "nccl_api.hpp"

namespace tutti::backend::nccl {

using cuda::CudaApi;
using cuda::DriverApi;

/// The libraries that a group calls. They outlive it, and every Work and Memory of it. A value.
struct Apis {
  const NcclApi* nccl = nullptr;
  const CudaApi* cuda = nullptr;
  const DriverApi* driver = nullptr;        ///< For the kernels; null where there are none.
  std::span<const std::byte> fold_image{};  ///< cuda::fold_image(), or a test's own.
};

}  // namespace tutti::backend::nccl
