#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "backend/agreement.hpp"

namespace tutti::internal {

/// A group that fails once: the error that reaches the store first breaks it, on all ranks with the
/// same cause. Called from any thread. A derived class knows how its transport stops.
class FailingGroup {
 public:
  FailingGroup(const std::shared_ptr<Store>& store, int rank, int size)
      : agreement_(store, rank, size) {}
  virtual ~FailingGroup() = default;
  FailingGroup(const FailingGroup&) = delete;
  FailingGroup& operator=(const FailingGroup&) = delete;

  Agreement& agreement() noexcept { return agreement_; }

  /// Breaks the group, unless it has failed already. Returns the first cause, which is the same on
  /// all ranks. Blocks for at most about 1 s longer than Failure::patience.
  Error fail(const Failure& failure) noexcept;
  /// The same for a call that ended because the transport was stopped: waits up to 2 s for the
  /// thread or the rank that found the cause.
  Error await_failure(const Failure& failure) noexcept;
  /// The cause; empty while the group works, and while the ranks agree on it.
  std::optional<Error> cause() const;
  /// False from the first call of fail() on.
  bool is_up() const noexcept { return up_.load(std::memory_order_acquire); }

 protected:
  /// Stops the transport: ends every call, on this rank and then on its peers, which find the error
  /// that is published already. Called once.
  virtual void stop(const Error& why) noexcept = 0;
  /// Called once, with the cause, without a lock.
  virtual void failed(const Error& cause) noexcept = 0;

 private:
  Agreement agreement_;
  std::atomic<bool> up_{true};
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::optional<Error> cause_;
};

}  // namespace tutti::internal
