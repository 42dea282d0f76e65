#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/error.hpp>

namespace [[gnu::visibility("default")]] tutti {

class WorkOwner;  // <tutti/backend/work_state.hpp>
class WorkState;

/// A call in flight, whose destructor waits for the call, by its deadline at the latest; while an
/// exception unwinds the stack, the destructor aborts the group first. detach() releases a call
/// without waiting. A call borrows the caller's buffers, so it must end before they do. Move-only.
/// One thread at a time.
///
/// An error is collected by wait(), error() or on_done(). An uncollected error breaks the group:
/// its next call throws the error. A default-made Work is finished.
///
/// Functions passed to then() and on_done() run on the group's worker thread, one after the other,
/// and may wait there behind an async call. They may make async calls on the group. A blocking one
/// would wait for itself on host memory and is refused; waiting for a Work of the group hangs.
class [[nodiscard]] Work {
 public:
  Work() noexcept = default;
  explicit Work(std::shared_ptr<WorkState> state, std::shared_ptr<WorkOwner> owner = {},
                std::uint64_t token = 0) noexcept;
  Work(Work&& other) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    if (state_ != nullptr) settle();
  }

  /// Blocks the host until the call has ended, by its deadline at the latest, and throws what
  /// went wrong. Afterwards the buffers are the caller's again. A call that was captured into a
  /// graph is refused: there is nothing to wait for on the host.
  void wait();
  /// Only observes: true when the call has ended. The call goes on if the deadline passes first.
  bool wait_for(Deadline deadline) const;
  bool done() const noexcept;
  /// What went wrong; empty while the call runs and when it went well.
  std::optional<Error> error();
  /// Work queued on `stream` from now on may use the buffers, and they may be freed in order on
  /// it. Does not block the host on a device; on host memory it waits.
  void block_stream(Stream stream);
  /// Runs `next` after the call; for a finished Work it runs now. The new Work ends after `next`
  /// and carries what it threw. An error skips it. @throws Error as on_done().
  Work then(std::function<void()> next) &&;
  /// Calls `f` once after the call has ended: with null after success, else with the error, which
  /// is then collected; wait() still throws it. For a Work without a call (default-made, or after
  /// wait()) `f` runs now, on this thread, with null.
  /// This Work ends after `f`; block_stream() does not wait for `f`. What `f` throws is logged as
  /// an error and breaks nothing. Callbacks of one Work run in the order of these calls.
  /// @throws Error resource_exhausted if no worker can start; unsupported for a call in a graph or
  ///         inside a Coalesce. `f` is then never called.
  void on_done(std::function<void(const Error*)> f);
  /// Releases the call without waiting. `keep_alive` is held until the call has ended, for
  /// example the buffers; so is the group. Its error breaks the group unless on_done() collected
  /// it. @throws Error as on_done(); the call has then ended.
  void detach(std::shared_ptr<void> keep_alive = {}) &&;
  /// One Work for all of them; the first error in their order is the one it throws.
  static Work all(std::span<Work> works);

  /// For backends and decorators: what it waits for, null when finished. It stays owned by this.
  const std::shared_ptr<WorkState>& state() const noexcept { return state_; }
  /// For decorators: takes the state out, without waiting.
  std::shared_ptr<WorkState> release() && noexcept { return std::move(state_); }

 private:
  struct Detached;
  void settle() noexcept;  // What the destructor does.

  std::shared_ptr<WorkState> state_;
  std::shared_ptr<WorkOwner> owner_;
  std::shared_ptr<WorkState> seen_;  // What on_done() watches; its error counts as collected.
  std::uint64_t token_ = 0;
  int unwinding_ = 0;  // std::uncaught_exceptions() when it was made.
};

}  // namespace tutti
