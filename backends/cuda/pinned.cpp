#include "pinned.hpp"

#include <utility>

#include "errors.hpp"

namespace tutti::backend::cuda {

Pinned::Pinned(std::shared_ptr<Gpu> gpu, std::size_t bytes) : gpu_(std::move(gpu)) {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  const RelaxedCapture relaxed(gpu_->cuda());
  check(gpu_->cuda(), gpu_->cuda().host_alloc(&data_, bytes, cudaHostAllocDefault),
        "cudaHostAlloc");
}

Pinned::~Pinned() {
  if (data_ == nullptr) return;
  const DeviceScope scope(gpu_->cuda(), gpu_->index(), std::nothrow);
  const RelaxedCapture relaxed(gpu_->cuda());
  (void)gpu_->cuda().free_host(data_);
}

Pinned::Pinned(Pinned&& other) noexcept
    : gpu_(std::move(other.gpu_)), data_(std::exchange(other.data_, nullptr)) {}

Pinned& Pinned::operator=(Pinned&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace tutti::backend::cuda
