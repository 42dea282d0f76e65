#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "api.hpp"
#include "fold.hpp"

namespace tutti::backend::cuda {

/// The device code of this build: kernels of fold.cu for some devices, and PTX for newer ones.
/// Empty where it was built without nvcc.
std::span<const std::byte> fold_image() noexcept;

/// The kernels of fold.cu, for all devices of the process. Called from any thread, whose device is
/// that of the stream.
class FoldKernels {
 public:
  /// @throws Error backend: the driver does not take the image.
  FoldKernels(const DriverApi& driver, std::span<const std::byte> image);

  /// In the order of `stream`.
  void fold(const Fold& what, cudaStream_t stream) const;
  /// *to = value, which is copied now.
  void put(double* to, double value, cudaStream_t stream) const;
  /// Launches each of them once, to no effect: a driver may load a kernel at its first launch, and
  /// wait for the whole device then, which would never end behind a collective that waits for its
  /// peers.
  void load(cudaStream_t stream) const;

 private:
  void launch(CUkernel kernel, std::uint64_t threads, void** parameters, cudaStream_t stream) const;

  const DriverApi& driver_;
  CUkernel fold_ = nullptr;
  CUkernel put_ = nullptr;
};

/// Those of an image, loaded at the first call and kept for ever.
/// @throws Error unsupported without an image; what the constructor throws.
const FoldKernels& fold_kernels(const DriverApi* driver, std::span<const std::byte> image);

}  // namespace tutti::backend::cuda
