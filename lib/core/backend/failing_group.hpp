#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "backend/agreement.hpp"

namespace tutti::internal {

/// A group that fails once: the first error that reaches the store breaks it, with the same cause
/// on all ranks. A derived class knows how its transport stops. Called from any thread.
class FailingGroup {
 public:
  FailingGroup(const std::shared_ptr<Store>& store, int rank, int size)
      : agreement_(store, rank, size) {}
  virtual ~FailingGroup() = default;
  FailingGroup(const FailingGroup&) = delete;
  FailingGroup& operator=(const FailingGroup&) = delete;

  Agreement& agreement() noexcept { return agreement_; }
  const Agreement& agreement() const noexcept { return agreement_; }

  /// Breaks the group, unless it is broken already. Returns the first cause, which is the same on
  /// all ranks. Blocks for at most about 1 s longer than Failure::patience.
  Error fail(const Failure& failure) noexcept;
  /// The same for a call that ended because the transport has stopped: waits up to 2 s for the
  /// thread or the rank that found the cause.
  Error await_failure(const Failure& failure) noexcept;
  /// Breaks the group if a peer has published a cause, and returns true then. `mine`: this rank's
  /// status, published if a peer collects status. Takes a round trip to the store.
  bool poll_peers(const Status& mine) noexcept;

  /// False from the first call of fail() on.
  bool is_up() const noexcept { return state_ == State::up; }
  /// True once the ranks have agreed on the cause.
  bool is_broken() const noexcept { return state_ == State::broken; }
  /// Empty until is_broken().
  std::optional<Error> cause() const;

 protected:
  /// Stops the transport, so that every call ends, on this rank and on its peers, which then find
  /// the published error. Called once. `why`: this rank's error.
  virtual void stop(const Error& why) noexcept = 0;
  /// Called once, without a lock, when the group is broken.
  virtual void on_broken(const Error& cause) noexcept = 0;

 private:
  enum class State : std::uint8_t { up, failing, broken };

  Agreement agreement_;
  std::atomic<State> state_{State::up};
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  bool is_announced_ = false;
  std::optional<Error> cause_;
};

}  // namespace tutti::internal
