#pragma once

#include "apis.hpp"
#include "cuda/device.hpp"
#include "cuda/errors.hpp"
#include "cuda/pause.hpp"

namespace tutti::backend::nccl {

using cuda::check;
using cuda::CudaStream;
using cuda::DeviceScope;
using cuda::Pause;
using cuda::to_cuda;

/// A device together with the NCCL that is used on it.
class Gpu final : public cuda::Gpu {
 public:
  Gpu(const Apis& apis, int index) : cuda::Gpu(*apis.cuda, index), apis_(apis) {}

  const NcclApi& nccl() const noexcept { return *apis_.nccl; }
  const Apis& apis() const noexcept { return apis_; }

 private:
  Apis apis_;
};

}  // namespace tutti::backend::nccl
