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

/// Page-locked host memory for copies from and to one device. Getting some from CUDA takes long and
/// may make the device wait, so what comes back is kept. From any thread.
///
/// As a Memory it is Backend::staging_memory() of the groups on the device.
class PinnedPool final : public Memory, public std::enable_shared_from_this<PinnedPool> {
 public:
  /// The bound on idle memory that is kept; the rest goes back to CUDA, the oldest first.
  static constexpr std::size_t most_idle = std::size_t{512} << 20;

  explicit PinnedPool(std::shared_ptr<Gpu> gpu, std::size_t bound = most_idle);
  ~PinnedPool() override;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// A piece of it. Move-only; goes back when it ends.
  class Block {
   public:
    Block() noexcept = default;
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) = delete;
    ~Block();

    std::byte* data() const noexcept { return data_; }
    /// Copies from or to it may be among what is on `stream` now: take() does not give it out
    /// before these have run. @throws Error, then never again.
    void busy_on(Gpu& gpu, cudaStream_t stream);
    void idle() noexcept { busy_.reset(); }
    /// A copy from or to it may run for an unknown time: take() never gives it out again.
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
  /// At least `bytes`, aligned to 64. @throws Error resource_exhausted.
  Block take(std::size_t bytes);

  Device device() const noexcept override { return {}; }
  /// @throws Error unsupported also while `stream` is captured.
  void* allocate(std::size_t bytes, Stream stream) override;
  void release(void* data, std::size_t bytes, Stream stream) noexcept override;
  /// Between arrays of the host.
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
  /// Gives back to CUDA what is more than `keep`, as far as no copy uses it.
  void trim(std::size_t keep) noexcept;
  void give(Idle block) noexcept;

  std::shared_ptr<Gpu> gpu_;
  std::size_t bound_;
  std::mutex mutex_;
  std::list<Idle> idle_;  // The one that came back first is first.
  std::size_t idle_bytes_ = 0;
  std::map<void*, Block> allocated_;  // By allocate().
};

/// The pool of a device, shared by the groups on it; ends with the last of them.
std::shared_ptr<PinnedPool> pinned_pool(const CudaApi& cuda, int device);

}  // namespace tutti::backend::cuda
