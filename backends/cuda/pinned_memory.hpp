#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include <tutti/memory.hpp>

#include "pinned_pool.hpp"

namespace tutti::backend::cuda {

/// The pool of a device as a Memory: Backend::staging_memory() of the groups there.
class PinnedMemory final : public Memory {
 public:
  explicit PinnedMemory(const std::shared_ptr<Gpu>& gpu);

  Device device() const noexcept override { return {}; }
  /// @throws Error unsupported also while `stream` is captured.
  void* allocate(std::size_t bytes, Stream stream) override;
  void release(void* data, std::size_t bytes, Stream stream) noexcept override;
  /// Between arrays of the host.
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;

 private:
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<PinnedPool> pool_;
  std::mutex mutex_;
  std::map<void*, PinnedPool::Block> blocks_;
};

}  // namespace tutti::backend::cuda
