#pragma once

#include "cuda/device.hpp"
#include "nccl.hpp"

namespace tutti::backend::nccl {

using cuda::CudaStream;
using cuda::DeviceScope;
using cuda::to_cuda;

/// A device together with the NCCL that is used on it.
class Gpu final : public cuda::Gpu {
 public:
  Gpu(const Apis& apis, int index) : cuda::Gpu(*apis.cuda, index), nccl_(*apis.nccl) {}

  const NcclApi& nccl() const noexcept { return nccl_; }
  Apis apis() const noexcept { return {&nccl_, &cuda()}; }

 private:
  const NcclApi& nccl_;
};

}  // namespace tutti::backend::nccl
