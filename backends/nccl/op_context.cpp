#include "op_context.hpp"

#include <utility>

namespace tutti::backend::nccl {

void OpContext::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) const {
  if (bytes == 0 || to == from) return;
  check(gpu.cuda(), gpu.cuda().memcpy_async(to, from, bytes, kind, stream), "cudaMemcpyAsync");
}

void OpContext::send(const void* data, std::size_t bytes, int peer, ncclComm_t comm) const {
  if (bytes == 0 || peer == rank) return;
  check(gpu.nccl(), gpu.nccl().send(data, bytes, ncclUint8, peer, comm, stream), "ncclSend");
}

void OpContext::recv(void* data, std::size_t bytes, int peer, ncclComm_t comm) const {
  if (bytes == 0 || peer == rank) return;
  check(gpu.nccl(), gpu.nccl().recv(data, bytes, ncclUint8, peer, comm, stream), "ncclRecv");
}

Scratch::Scratch(const OpContext& context, std::size_t bytes)
    : memory_(&context.memory),
      stream_(context.stream),
      data_(static_cast<std::byte*>(memory_->allocate(bytes, {stream_}))),
      bytes_(bytes) {}

Scratch::~Scratch() {
  if (data_ != nullptr) memory_->release(data_, bytes_, {stream_});
}

Scratch::Scratch(Scratch&& other) noexcept
    : memory_(other.memory_),
      stream_(other.stream_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(stream_, other.stream_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace tutti::backend::nccl
