#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <tutti/backend/backend_table.hpp>

#include "backend/call_queue.hpp"
#include "backend/failing_group.hpp"

namespace tutti::backend::nccl {

/// The longest time between two polls of the store.
constexpr std::chrono::seconds rarest_look{1};
/// The time from the start of a call to the first poll of the store, and the shortest time between
/// two polls: 20 ms for up to 8 ranks, and in proportion to the ranks beyond, which poll one store.
std::chrono::nanoseconds first_look(int size);
/// The time between two polls for a call of this age.
std::chrono::nanoseconds between_looks(std::chrono::nanoseconds age, int size);
/// The time for which a rank whose call of this age is late collects the status of its peers: they
/// need it to poll the store once. At most 4 s.
std::chrono::nanoseconds collecting_time(std::chrono::nanoseconds age, int size);

/// The failure of a group: the cause, and the errors of the calls that it ends. All parts of a
/// group report failures here. Called from any thread.
class Failure final : public internal::FailingGroup {
 public:
  using Clock = std::chrono::steady_clock;

  /// `order`: the queue whose waiting calls end with the cause.
  Failure(const BackendInit& init, std::shared_ptr<internal::CallQueue> order)
      : FailingGroup(init.store, init.rank, init.size), init_(init), order_(std::move(order)) {}
  /// Sets the function that is called, without a lock, when the group has broken. Must precede the
  /// first call.
  void on_break(std::function<void()> action) { on_break_ = std::move(action); }

  /// @throws Error when the group is broken.
  void require_intact() const;

  /// Breaks the group, because of `mine` or of the cause that a peer published first.
  using FailingGroup::fail;
  void fail(const Error& mine) noexcept;
  /// Breaks the group because a call of this rank reached its deadline. `since`: when the call
  /// began. Unless the call is a send or receive, collects the peers' status first.
  void fail_late(const Op& op, const Call& call, Clock::time_point since) noexcept;
  /// The same with the error `mine` of a call with `status`. Collects the peers' status for at most
  /// `patience`.
  void fail_late(const Error& mine, const internal::Status& status,
                 std::chrono::nanoseconds patience) noexcept;
  /// Collects the refusals that peers have published since the last collect_refusals(). From one
  /// thread.
  void collect_refusals() noexcept { (void)agreement().refusals().read_new(); }
  /// The refusal of this call among the collected refusals; null if there is none.
  const internal::Refusal* refusal_of(const Op& op, const Call& call) noexcept {
    return agreement().refusals().of(id_of(op, call));
  }
  /// The ranks that have left, each mapped to the number of its last collective plus one. Called
  /// from one thread.
  const std::map<int, std::uint64_t>& departed() noexcept { return agreement().departed(); }

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
  void stop(const Error&) noexcept override {}  // The Watcher aborts, with the cause.
  void on_broken(const Error& cause) noexcept override;
  void await_drained() const noexcept;

  const BackendInit& init_;
  std::shared_ptr<internal::CallQueue> order_;
  std::function<void()> on_break_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string late_;
  bool drained_ = false;
};

}  // namespace tutti::backend::nccl
