#pragma once

#include <atomic>

#include "values/fork_guard.hpp"

namespace tutti::backend::memory {

/// The object that the threads of this process share. A forked child gets a new one: at the fork
/// another thread may have held a lock of the parent's, which nothing in the child would unlock.
/// Never destroyed: groups may outlive static objects.
template <typename T>
T& of_this_process() {
  struct Shared {
    internal::ForkGuard guard;
    T value;
  };
  // No lock and no guard of a static, for the same reason.
  static constinit std::atomic<Shared*> current{nullptr};
  // Acquire, and release below: the object is complete.
  auto* now = current.load(std::memory_order_acquire);
  while (now == nullptr || now->guard.forked()) {
    auto* const made = new Shared;
    if (current.compare_exchange_strong(now, made, std::memory_order_acq_rel,
                                        std::memory_order_acquire))
      return made->value;
    delete made;  // Another thread was first.
  }
  return now->value;
}

}  // namespace tutti::backend::memory
