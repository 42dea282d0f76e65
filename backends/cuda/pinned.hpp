#pragma once

#include <cstddef>
#include <memory>

#include "device.hpp"

namespace tutti::backend::cuda {

/// Any device may be the thread's, and other threads may capture into a graph.
cudaError_t allocate_pinned(const Gpu& gpu, std::size_t bytes, void** data);
void free_pinned(const Gpu& gpu, void* data) noexcept;

/// Page-locked host memory: a copy between it and a device does not wait on the host. Making and
/// freeing it may wait for the device, so keep it. Move-only.
class Pinned {
 public:
  Pinned(std::shared_ptr<Gpu> gpu, std::size_t bytes);
  ~Pinned();
  Pinned(Pinned&& other) noexcept;
  Pinned& operator=(Pinned&& other) noexcept;

  void* data() const noexcept { return data_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  void* data_ = nullptr;
};

}  // namespace tutti::backend::cuda
