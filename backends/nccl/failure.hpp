#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <tutti/backend/backend_table.hpp>

#include "backend/agreement.hpp"
#include "backend/call_queue.hpp"

namespace tutti::backend::nccl {

/// The time from the start of a call to the first poll of the store, and the shortest time between
/// two polls.
constexpr std::chrono::milliseconds first_look{20};
/// The longest time between two polls of the store.
constexpr std::chrono::seconds rarest_look{1};
/// The time between two polls for a call of this age.
std::chrono::nanoseconds between_looks(std::chrono::nanoseconds age);

/// The first cause that broke a group, agreed on with the peers, and the errors of the calls that
/// this cause ends. All parts of a group report failures here; the agreement decides which rank's
/// cause counts.
///
/// Called from any thread. `mutex_` guards cause_, late_ and drained_; no other lock is taken under
/// it.
class Failure {
 public:
  using Clock = std::chrono::steady_clock;

  /// `order`: the queue whose waiting calls end with the cause.
  Failure(const BackendInit& init, internal::Agreement& agreement,
          std::shared_ptr<internal::CallQueue> order)
      : init_(init), agreement_(agreement), order_(std::move(order)) {}
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;
  /// Sets the function that is called, without a lock, when the group has broken. Must precede the
  /// first call.
  void on_break(std::function<void()> action) { on_break_ = std::move(action); }

  bool broken() const noexcept { return broken_; }
  std::optional<Error> cause() const;
  /// @throws Error when the group is broken.
  void require_intact() const;

  /// Breaks the group, because of `mine` or of the cause that a peer published first.
  void fail(const Error& mine) noexcept;
  /// Breaks the group because a call of this rank reached its deadline. `since`: when the call
  /// began. Unless the call is a send or receive, collects the peers' status first.
  void fail_late(const Op& op, const Call& call, Clock::time_point since) noexcept;
  /// The same with the error `mine` of a call with `status`. Collects the peers' status for at most
  /// `patience`.
  void fail_late(const Error& mine, const internal::Status& status,
                 std::chrono::nanoseconds patience) noexcept;
  /// Breaks the group when a peer has published a cause, and returns true then. `mine`: this rank's
  /// status, published if a peer collects status.
  bool poll_peers(const internal::Status& mine) noexcept;
  /// Collects the refusals that peers have published since the last collect_refusals(). From one
  /// thread.
  void collect_refusals() noexcept { (void)agreement_.new_refusals(); }
  /// The refusal of this call among the collected refusals; null if there is none.
  const internal::Refusal* refusal_of(const Op& op, const Call& call) const noexcept {
    return agreement_.refusal_of(id_of(op, call));
  }
  /// The ranks that have left, each mapped to the number of its last collective plus one. Called
  /// from one thread.
  const std::map<int, std::uint64_t>& departed() noexcept { return agreement_.departed(); }

  /// Records that no operation of the group runs any more, and ends await_error_of() and
  /// await_cause(). `late`: empty, or if the abort has not ended, a text that says so, which is
  /// added to their errors.
  void set_drained(std::string late) noexcept;
  /// The error of a call, once the group is broken.
  Error error_of(const Op& op, const Call& call) const noexcept;
  /// Blocks until set_drained() and returns error_of(). Nothing uses the call's arrays then, unless
  /// the error's text says that the device may.
  Error await_error_of(const Op& op, const Call& call) const noexcept;
  /// Blocks until set_drained() and returns the cause, with set_drained()'s `late` appended to its
  /// text.
  Error await_cause() const noexcept;

  /// The status of a rank that is in this call: "all_reduce #3 on group 'g'".
  internal::Status status_of(const Op& op, const Call& call) const;
  /// The id of the call in refusals.
  std::uint64_t id_of(const Op& op, const Call& call) const noexcept;

 private:
  void break_with(const Error& cause) noexcept;
  void await_drained() const noexcept;

  const BackendInit& init_;
  internal::Agreement& agreement_;
  std::shared_ptr<internal::CallQueue> order_;
  std::function<void()> on_break_;
  std::atomic<bool> broken_{false};

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Error> cause_;
  std::string late_;
  bool drained_ = false;
};

}  // namespace tutti::backend::nccl
