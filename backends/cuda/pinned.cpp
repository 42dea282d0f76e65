#include "pinned.hpp"

#include <utility>

#include "errors.hpp"

namespace tutti::backend::cuda {

cudaError_t allocate_pinned(const Gpu& gpu, std::size_t bytes, void** data) {
  const DeviceScope scope(gpu.cuda(), gpu.index());
  const RelaxedCapture relaxed(gpu.cuda());
  return gpu.cuda().host_alloc(data, bytes, cudaHostAllocDefault);
}

void free_pinned(const Gpu& gpu, void* data) noexcept {
  const DeviceScope scope(gpu.cuda(), gpu.index(), std::nothrow);
  const RelaxedCapture relaxed(gpu.cuda());
  (void)gpu.cuda().free_host(data);
}

Pinned::Pinned(std::shared_ptr<Gpu> gpu, std::size_t bytes) : gpu_(std::move(gpu)) {
  check(gpu_->cuda(), allocate_pinned(*gpu_, bytes, &data_), "cudaHostAlloc");
}

Pinned::~Pinned() {
  if (data_ != nullptr) free_pinned(*gpu_, data_);
}

Pinned::Pinned(Pinned&& other) noexcept
    : gpu_(std::move(other.gpu_)), data_(std::exchange(other.data_, nullptr)) {}

Pinned& Pinned::operator=(Pinned&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace tutti::backend::cuda
