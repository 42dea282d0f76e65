#pragma once

#include <cstddef>
#include <span>

#include "api.hpp"
#include "fold.hpp"

namespace tutti::backend::cuda {

/// The device code of this build: kernels of fold.cu for some devices, and PTX for newer ones.
/// Empty in a build without nvcc.
std::span<const std::byte> fold_image() noexcept;

/// The kernels of fold.cu, for all devices of the process. Called from any thread; the thread's
/// current device must be the stream's.
class FoldKernels {
 public:
  /// @throws Error backend when the driver rejects the image; resource_exhausted without memory.
  FoldKernels(const DriverApi& driver, std::span<const std::byte> image);

  /// Launches the fold on `stream`.
  void fold(const Fold& what, cudaStream_t stream) const;
  /// Queues *to = value on `stream`; copies `value` at once.
  void put(double* to, double value, cudaStream_t stream) const;
  /// Launches each kernel once, without an effect. A driver may load a kernel at its first launch
  /// and then wait for the whole device; that would deadlock while a collective on the device waits
  /// for its peers.
  void load(cudaStream_t stream) const;

 private:
  void launch(CUkernel kernel, std::uint64_t threads, void** parameters, cudaStream_t stream) const;

  const DriverApi& driver_;
  CUkernel fold_ = nullptr;
  CUkernel put_ = nullptr;
};

/// Returns the kernels of an image, loaded at the first call and never unloaded. @throws Error
/// unsupported when `driver` is null or `image` is empty; otherwise as the constructor.
const FoldKernels& fold_kernels(const DriverApi* driver, std::span<const std::byte> image);

}  // namespace tutti::backend::cuda
