#pragma once

#include <cstddef>
#include <memory>

#include <tutti/device.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Where arrays live: host, pinned, CUDA, or the embedder's own allocator. One object per device
/// and allocator. Called from any thread.
class Memory {
 public:
  virtual ~Memory();
  virtual Device device() const noexcept = 0;
  /// At least `bytes` bytes, aligned to 64; never null, also for 0 bytes. Usable in order on
  /// `stream`. @throws Error resource_exhausted.
  virtual void* allocate(std::size_t bytes, Stream stream) = 0;
  /// `bytes` is what allocate() was asked for. Work queued on `stream` before may still use it.
  virtual void release(void* data, std::size_t bytes, Stream stream) noexcept = 0;
  /// In order on `stream`; either side may be host memory, also pinned, which is the caller's again
  /// when this returns: the host waits. Ranges do not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  /// Keeps this object alive while held. A Tensor holds it, so a Tensor of a group's memory may
  /// outlive the group. Null by default: then the object itself outlives its Tensors.
  virtual std::shared_ptr<const void> lifetime() const noexcept { return nullptr; }
};

/// malloc'ed memory, 64-byte aligned. Lives for ever.
Memory& host_memory() noexcept;

}  // namespace tutti
