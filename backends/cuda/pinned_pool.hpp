#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "device.hpp"

namespace tutti::backend::cuda {

/// Page-locked host memory for copies from and to one device. Getting some from CUDA takes long and
/// may make the device wait, so what comes back is kept. From any thread.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  /// The bound on idle memory that is kept; the rest goes back to CUDA, the oldest first.
  static constexpr std::size_t most_idle = std::size_t{512} << 20;

  explicit PinnedPool(std::shared_ptr<Gpu> gpu, std::size_t bound = most_idle);
  ~PinnedPool();
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
    /// A copy from or to it may run until then: take() does not give it out before.
    void busy_until(Gpu::Event end) { busy_.emplace(std::move(end)); }
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

 private:
  struct Idle {
    std::byte* data;
    std::size_t bytes;
    std::optional<Gpu::Event> busy;
  };
  std::optional<Idle> take_idle(std::size_t bytes);
  /// Gives back to CUDA what is more than `keep`, as far as no copy uses it.
  void trim(std::size_t keep) noexcept;
  void give(Idle block) noexcept;

  std::shared_ptr<Gpu> gpu_;
  std::size_t bound_;
  std::mutex mutex_;
  std::list<Idle> idle_;  // The one that came back first is first.
  std::size_t idle_bytes_ = 0;
};

/// The pool of a device, shared by the groups on it; ends with the last of them.
std::shared_ptr<PinnedPool> pinned_pool(const CudaApi& cuda, int device);

}  // namespace tutti::backend::cuda
