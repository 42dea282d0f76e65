#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <tutti/backend/work_state.hpp>

#include "backend/call_queue.hpp"

namespace tutti::internal {

/// A pool of memory: a steady stream of calls allocates nothing. Keeps the blocks that were
/// released, by their sizes, which are powers of two. Allocates several small blocks at a time,
/// because ranks that are slow have more calls in flight.
/// (std::pmr::synchronized_pool_resource would take one of the process's 1024 thread keys per
/// group, and std::pmr::unsynchronized_pool_resource of libstdc++ 12 dereferences null after an
/// allocation of its own has failed: src/c++17/memory_resource.cc, _Pool::vector.)
class Pool final : public std::pmr::memory_resource {
 public:
  Pool() = default;
  ~Pool() override {
    while (chunks_ != nullptr) ::operator delete(std::exchange(chunks_, chunks_->next));
  }

 private:
  struct Block {
    Block* next;
  };
  static constexpr std::size_t smallest = 5;  // 32 bytes, also for the header of a chunk.
  static constexpr std::size_t sizes = 12;    // Up to 64 KiB. Larger blocks are not kept.
  static constexpr std::size_t chunk_bytes = 16 * 1024;
  static constexpr std::size_t most_in_chunk = 16;

  /// The index in free_; `sizes` for a block that is not kept.
  static std::size_t size_of(std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment > __STDCPP_DEFAULT_NEW_ALIGNMENT__) return sizes;
    const auto width = static_cast<std::size_t>(std::bit_width(bytes == 0 ? 0 : bytes - 1));
    return width <= smallest ? 0 : std::min(width - smallest, sizes);
  }
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const auto size = size_of(bytes, alignment);
    if (size == sizes) return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    const std::lock_guard lock(mutex_);
    if (free_[size] == nullptr) add_chunk(size);
    return std::exchange(free_[size], free_[size]->next);
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept override {
    const auto size = size_of(bytes, alignment);
    if (size == sizes) return std::pmr::new_delete_resource()->deallocate(data, bytes, alignment);
    const std::lock_guard lock(mutex_);
    free_[size] = new (data) Block{free_[size]};
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  void add_chunk(std::size_t size) {
    constexpr auto header = std::size_t{1} << smallest;
    const auto bytes = header << size;
    const auto count = std::clamp<std::size_t>(chunk_bytes / bytes, 1, most_in_chunk);
    auto* const data = static_cast<std::byte*>(::operator new(header + count * bytes));
    chunks_ = new (data) Block{chunks_};
    for (std::size_t i = count; i-- > 0;)
      free_[size] = new (data + header + i * bytes) Block{free_[size]};
  }

  std::mutex mutex_;
  std::array<Block*, sizes> free_{};
  Block* chunks_ = nullptr;
};

/// An allocator that keeps its pool alive, so that a state may outlive its group.
template <typename T>
struct PoolAllocator {
  using value_type = T;
  std::shared_ptr<Pool> pool;

  explicit PoolAllocator(std::shared_ptr<Pool> p) noexcept : pool(std::move(p)) {}
  template <typename U>
  PoolAllocator(const PoolAllocator<U>& other) noexcept : pool(other.pool) {}
  T* allocate(std::size_t n) { return static_cast<T*>(pool->allocate(n * sizeof(T), alignof(T))); }
  void deallocate(T* data, std::size_t n) noexcept {
    pool->deallocate(data, n * sizeof(T), alignof(T));
  }
  template <typename U>
  bool operator==(const PoolAllocator<U>& other) const noexcept {
    return pool == other.pool;
  }
};

/// The state of a call on host memory. finish() completes it.
class HostState : public WorkState, public std::enable_shared_from_this<HostState> {
 public:
  explicit HostState(std::shared_ptr<CallQueue> queue) noexcept : queue_(std::move(queue)) {}

  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  bool wait_until(Deadline deadline) override;
  std::exception_ptr error() const noexcept override;
  void block_stream(Stream) override { wait_until(Deadline::none()); }
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;

  bool forked() const noexcept { return queue_->forked(); }
  /// Ends the call with `error`; null: without an error. Only the first finish() has an effect. The
  /// caller must hold a reference, because a waiter may drop its reference at once.
  void finish(const std::exception_ptr& error) noexcept;

 protected:
  CallQueue& queue() const noexcept { return *queue_; }

 private:
  class Continuation;
  class Next;
  class Callback;
  /// Registers `after`, which starts when this call ends. Returns false, and sets `error`, if the
  /// call has ended already: then the caller starts `after`.
  bool attach(const std::shared_ptr<Continuation>& after, std::exception_ptr& error);

  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  std::vector<std::shared_ptr<Continuation>> next_;
  std::shared_ptr<CallQueue> queue_;
};

}  // namespace tutti::internal
