#pragma once

#include <memory>
#include <utility>

#include "group/call_queue.hpp"
#include "group/host_state.hpp"

namespace tutti::internal {

/// The order of a HostBackend's calls, and memory for their states.
class HostCalls {
 public:
  /// For a callback that may run while the backend ends.
  const std::shared_ptr<CallQueue>& queue() const noexcept { return queue_; }
  Pool& pool() noexcept { return *pool_; }
  /// A state from the pool, of T(queue, args...).
  template <typename T, typename... Args>
  std::shared_ptr<T> make_state(Args&&... args) {
    return std::allocate_shared<T>(PoolAllocator<T>(pool_), queue_, std::forward<Args>(args)...);
  }

 private:
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  std::shared_ptr<CallQueue> queue_ = std::make_shared<CallQueue>();
};

}  // namespace tutti::internal
