#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <tutti/memory.hpp>

#include "device.hpp"

namespace tutti::backend::cuda {

/// A pool of page-locked host memory for copies from and to one device, because an allocation by
/// CUDA takes long and may make the device wait. Called from any thread.
///
/// Backend::staging_memory() of the groups on the device.
class PinnedPool final : public Memory, public std::enable_shared_from_this<PinnedPool> {
 public:
  /// The limit of idle memory in bytes. Memory beyond the limit is freed, the oldest block first.
  static constexpr std::size_t most_idle = std::size_t{512} << 20;

  explicit PinnedPool(std::shared_ptr<Gpu> gpu, std::size_t bound = most_idle);
  ~PinnedPool() override;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// A block of the pool. Move-only; the destructor returns it.
  class Block {
   public:
    Block() noexcept = default;
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) = delete;
    ~Block();

    std::byte* data() const noexcept { return data_; }
    /// Marks the block as used by the work queued on `stream`: take() reuses it only after that
    /// work. @throws Error; the block is then never reused.
    void busy_on(Gpu& gpu, cudaStream_t stream);
    void idle() noexcept { busy_.reset(); }
    /// Marks the block as used for an unknown time: take() never reuses it.
    void lose() noexcept { data_ = nullptr; }
    const std::optional<Gpu::Event>& busy() const noexcept { return busy_; }

   private:
    friend class PinnedPool;
    Block(std::shared_ptr<PinnedPool> pool, std::byte* data, std::size_t bytes) noexcept;

    std::shared_ptr<PinnedPool> pool_;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::optional<Gpu::Event> busy_;
  };
  /// Returns a block of at least `bytes` bytes, aligned to 64. @throws Error resource_exhausted.
  Block take(std::size_t bytes);

  Device device() const noexcept override { return {}; }
  /// @throws Error as take() does, and unsupported while `stream` is captured.
  void* allocate(std::size_t bytes, Stream stream) override;
  void release(void* data, std::size_t bytes, Stream stream) noexcept override;
  /// Copies from host memory to host memory.
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  std::shared_ptr<const void> lifetime() const noexcept override { return weak_from_this().lock(); }

 private:
  struct Idle {
    std::byte* data;
    std::size_t bytes;
    std::optional<Gpu::Event> busy;
  };
  cudaError_t get_from_cuda(std::size_t bytes, void** data);
  void give_to_cuda(void* data) noexcept;
  std::optional<Idle> take_idle(std::size_t bytes);
  /// Frees the oldest idle blocks that no copy uses, until at most `keep` idle bytes are left.
  void trim(std::size_t keep) noexcept;
  void give(Idle block) noexcept;

  std::shared_ptr<Gpu> gpu_;
  std::size_t bound_;
  std::mutex mutex_;
  std::list<Idle> idle_;  // In the order of return.
  std::size_t idle_bytes_ = 0;
  std::map<void*, Block> allocated_;  // The blocks that allocate() returned.
};

/// The pool of a device, shared by the groups on the device and destroyed with the last group.
std::shared_ptr<PinnedPool> pinned_pool(const CudaApi& cuda, int device);

}  // namespace tutti::backend::cuda
