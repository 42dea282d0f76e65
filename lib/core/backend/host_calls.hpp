#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include <tutti/backend/host_backend.hpp>

#include "backend/call_queue.hpp"
#include "backend/host_state.hpp"

namespace tutti {

/// Sends and receives that a launch has posted. The first four need no allocation.
class HostBackend::Posts {
 public:
  explicit Posts(std::pmr::memory_resource& pool)
      : memory_(room_.data(), room_.size(), &pool), states_(&memory_) {}
  Posts(const Posts&) = delete;
  Posts& operator=(const Posts&) = delete;

  void reserve(std::size_t count) { states_.reserve(count); }
  void add(std::shared_ptr<WorkState> state) { states_.push_back(std::move(state)); }
  bool empty() const noexcept { return states_.empty(); }
  /// Blocks until all messages are done, at most until the call's deadline. Returns the first error
  /// in their order; null: none.
  std::exception_ptr wait() noexcept;
  /// One state for all messages; null if there are none.
  std::shared_ptr<WorkState> all() const;

 private:
  std::array<std::byte, 4 * sizeof(std::shared_ptr<WorkState>)> room_;
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::vector<std::shared_ptr<WorkState>> states_;
};

/// The order of a HostBackend's calls, and memory for their states.
class HostBackend::Calls {
 public:
  static Calls& of(HostBackend& backend) noexcept { return *backend.calls_; }
  /// Ends the calls of a part (WholeGroup) for one call of the whole group, of which `call` is any
  /// and one has failed. None is in progress, and none will be made. No message of them arrives
  /// after that. Blocks until the peers have done the same, for about 2 s at most. If that fails,
  /// breaks the group with `why` and returns false; also if the group is broken already. Not set:
  /// the backend has no such messages.
  std::function<bool(const Call& call, const Error& why)> leave_parts{};
  /// Breaks the group on all ranks with this error. Of a part, whose whole group has broken. Not
  /// set: abort() does it.
  std::function<void(const Error& why)> fail_with{};

  /// Shared with callbacks that may run while the backend is destroyed.
  const std::shared_ptr<internal::CallQueue>& queue() const noexcept { return queue_; }
  internal::Pool& pool() noexcept { return *pool_; }
  /// Makes a T(queue, args...), in memory of the pool.
  template <typename T, typename... Args>
  std::shared_ptr<T> make_state(Args&&... args) {
    return std::allocate_shared<T>(internal::PoolAllocator<T>(pool_), queue_,
                                   std::forward<Args>(args)...);
  }

 private:
  std::shared_ptr<internal::Pool> pool_ = std::make_shared<internal::Pool>();
  std::shared_ptr<internal::CallQueue> queue_ = std::make_shared<internal::CallQueue>();
};

}  // namespace tutti
