#include "pinned.hpp"

#include <utility>

#include "errors.hpp"

namespace tutti::backend::cuda {

Pinned::Pinned(const CudaApi& cuda, std::size_t bytes) : cuda_(&cuda) {
  check(cuda, cuda.host_alloc(&data_, bytes, cudaHostAllocDefault), "cudaHostAlloc");
}

Pinned::~Pinned() {
  if (data_ != nullptr) (void)cuda_->free_host(data_);
}

Pinned::Pinned(Pinned&& other) noexcept
    : cuda_(other.cuda_), data_(std::exchange(other.data_, nullptr)) {}

Pinned& Pinned::operator=(Pinned&& other) noexcept {
  std::swap(cuda_, other.cuda_);
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace tutti::backend::cuda
