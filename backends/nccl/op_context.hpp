#pragma once

#include <cstddef>

#include <tutti/memory.hpp>

#include "cuda/fold_kernels.hpp"
#include "gpu.hpp"

namespace tutti::backend::nccl {

/// The alignment of slots of scratch memory in bytes: NCCL is several times slower without it.
constexpr std::size_t slot_alignment = 16;
constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}

/// The device, stream and ranks of one operation, with functions that queue copies and sends on the
/// stream. A value.
struct OpContext {
  Gpu& gpu;
  cudaStream_t stream;
  Memory& memory;
  int rank;
  int size;
  void* token;                       ///< One element in device memory, for a barrier.
  const cuda::FoldKernels* kernels;  ///< Null without kernels.

  /// Queues a copy. Does nothing for 0 bytes, or when both addresses are equal.
  void copy(void* to, const void* from, std::size_t bytes,
            cudaMemcpyKind kind = cudaMemcpyDeviceToDevice) const;
  /// Call ncclSend and ncclRecv. They do nothing for 0 bytes, or when the peer is this rank.
  void send(const void* data, std::size_t bytes, int peer, ncclComm_t comm) const;
  void recv(void* data, std::size_t bytes, int peer, ncclComm_t comm) const;
};

/// Memory of a call, allocated and released in the order of its stream. Move-only.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const OpContext& context, std::size_t bytes);
  ~Scratch();
  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  /// Makes the destructor release the memory in the order of `stream`, which is ordered after the
  /// previous stream.
  void last_used_on(cudaStream_t stream) noexcept { stream_ = stream; }

 private:
  Memory* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tutti::backend::nccl
