#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include <tutti/memory.hpp>

#include "gpu.hpp"

namespace tutti::backend::nccl {

/// Memory of ncclMemAlloc, which windows need. Not stream-ordered: a release blocks the host until
/// the work on its stream has run. A release leaks the block if its stream is being captured, or if
/// it is the default stream while another stream is captured.
class NcclMemory final : public Memory {
 public:
  NcclMemory(const Apis& apis, int index);

  Device device() const noexcept override;
  void* allocate(std::size_t bytes, Stream stream) override;
  void release(void* data, std::size_t bytes, Stream stream) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;

  /// The beginning of the block in which the range lies, if the range may become a window: it has
  /// NCCL's alignment. Null otherwise.
  const std::byte* block_for_window(const void* data, std::size_t bytes) const noexcept;

 private:
  Apis apis_;
  int index_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> blocks_;
};

/// The memory of a device. Never destroyed: Tensors may outlive their group.
NcclMemory& nccl_memory(const Apis& apis, int device);

}  // namespace tutti::backend::nccl
