#pragma once

#include <cstddef>
#include <span>

#include "cuda/device.hpp"
#include "nccl_api.hpp"

namespace tutti::backend::nccl {

using cuda::check;
using cuda::CudaApi;
using cuda::CudaStream;
using cuda::DeviceScope;
using cuda::DriverApi;
using cuda::Pause;
using cuda::to_cuda;

/// The error text for a deadline that passed before NCCL had queued the call.
inline constexpr const char* late_in_nccl = "the deadline passed inside NCCL";

/// The libraries that a group calls. They outlive the group, its Works and its Memory. A value.
struct Apis {
  const NcclApi* nccl = nullptr;
  const CudaApi* cuda = nullptr;
  const DriverApi* driver = nullptr;        ///< For the kernels; null without kernels.
  std::span<const std::byte> fold_image{};  ///< cuda::fold_image(), or a test's own.
};

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
