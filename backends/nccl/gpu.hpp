#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "cuda/device.hpp"
#include "nccl_api.hpp"
#include "settings.hpp"

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

/// A device together with the NCCL that is used on it, and a group's settings of it.
class Gpu final : public cuda::Gpu {
 public:
  Gpu(const Apis& apis, int index, Settings settings)
      : cuda::Gpu(*apis.cuda, index), apis_(apis), settings_(std::move(settings)) {}

  const NcclApi& nccl() const noexcept { return *apis_.nccl; }
  const Apis& apis() const noexcept { return apis_; }
  const Settings& settings() const noexcept { return settings_; }

 private:
  Apis apis_;
  Settings settings_;
};

}  // namespace tutti::backend::nccl
