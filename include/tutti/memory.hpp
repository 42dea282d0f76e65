#pragma once

#include <cstddef>
#include <memory>

#include <tutti/device.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// An allocator of arrays: host, pinned, CUDA, or the embedder's own. One object per device and
/// allocator. It must outlive its Tensors, unless lifetime() keeps it alive. Called from any
/// thread.
class Memory {
 public:
  virtual ~Memory();
  virtual Device device() const noexcept = 0;  ///< Of the blocks that allocate() returns.
  /// Returns at least `bytes` bytes, aligned to 64; never null, even for 0 bytes. The block may be
  /// used by work queued on `stream` after this returns. @throws Error resource_exhausted.
  virtual void* allocate(std::size_t bytes, Stream stream) = 0;
  /// Frees a block; `bytes` as passed to allocate(). Work already queued on `stream` may still use
  /// the block.
  virtual void release(void* data, std::size_t bytes, Stream stream) noexcept = 0;
  /// Copies in order on `stream`. If one side is host memory, pinned included, the call returns
  /// after the copy has ended. Ranges must not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  /// Keeps this object alive while held. A Tensor holds it, so a Tensor of a group's memory may
  /// outlive the group. Null by default: then the object itself must outlive its Tensors.
  virtual std::shared_ptr<const void> lifetime() const noexcept { return nullptr; }
};

/// Host memory of malloc(), 64-byte aligned. Never destroyed.
Memory& host_memory() noexcept;

}  // namespace tutti
