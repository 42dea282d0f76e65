#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/error.hpp>

namespace [[gnu::visibility("default")]] tutti {

class WorkOwner;  // <tutti/backend/work_state.hpp>
class WorkState;

/// A call in flight. The destructor waits until the call ends, at the latest at its deadline
/// (default: five minutes); while an exception unwinds the stack, it aborts the group first.
/// detach() releases a call without waiting. A call borrows the caller's buffers, which must
/// outlive it. Move-only. One thread at a time.
///
/// An error is collected by wait(), error() or on_done(). An uncollected error breaks the group:
/// its next call throws the error. A default-made Work is finished.
///
/// Functions passed to then() and on_done() run on the group's worker thread in turn, so they may
/// start late, after an async collective. They may issue async calls. Such a function must not wait
/// for a Work of the same group: the wait would never end. A blocking call on host memory is
/// refused. On host memory a function that then() adds to a collective runs before async
/// collectives that this thread issues afterwards on the group, so it may produce the input of
/// those collectives.
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

  /// Blocks the host until the call ends, at the latest at its deadline. Throws the call's error,
  /// or Error unsupported for a call captured into a graph, for which the host cannot wait.
  /// Afterwards the caller may reuse the buffers.
  void wait();
  /// Waits until `deadline`, or for `time`, at most. True if the call has ended; otherwise it
  /// continues.
  bool wait_until(Deadline deadline) const;
  /// See wait_until().
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> time) const {
    return wait_until(time);
  }
  bool done() const noexcept;  ///< True after the end of the call, with an error or without.
  /// The call's error; empty while it runs and after success.
  std::optional<Error> error();
  /// Kernels and copies queued on `stream` after this may use the buffers, and the buffers may be
  /// freed in stream order. Does not block the host on a device; on host memory it waits.
  void block_stream(Stream stream);
  /// Runs `next` after the call. For a Work without a call `next` runs now, on this thread. The new
  /// Work ends after `next` and has the error that `next` threw. An error of the call skips `next`;
  /// on_done() always runs.
  Work then(std::function<void()> next) &&;
  /// Calls `f` once after the call has ended: with null after success, else with the error, which
  /// is then collected; wait() still throws it. For a Work without a call (default-made, or after
  /// wait()) `f` runs now, on this thread, with null.
  /// wait() on this Work now waits for `f` as well. Streams do not wait for `f`. An exception of
  /// `f` is logged as an error and breaks nothing. Callbacks of one Work run in the order in which
  /// they were passed.
  /// @throws Error resource_exhausted if no worker can start; unsupported for a call in a graph or
  ///         inside a Coalesce. `f` is then never called.
  void on_done(std::function<void(const Error*)> f);
  /// Releases the call without waiting. The group and `keep_alive`, for example the buffers, are
  /// held until the call has ended. The call's error breaks the group unless on_done() collected
  /// it. @throws Error as on_done(); before throwing it waits for the call.
  void detach(std::shared_ptr<void> keep_alive = {}) &&;
  /// One Work for all. Takes the Works; wait() of the result throws the first error in their order.
  static Work all(std::span<Work> works);

  /// For backends and decorators: the backend's side of the call; null for a Work without a call.
  /// The Work keeps ownership.
  const std::shared_ptr<WorkState>& state() const noexcept { return state_; }
  /// For decorators: releases the state without waiting.
  std::shared_ptr<WorkState> release() && noexcept { return std::move(state_); }

 private:
  struct Detached;
  void settle() noexcept;  // Waits, and reports an error that was not collected.

  std::shared_ptr<WorkState> state_;
  std::shared_ptr<WorkOwner> owner_;
  std::shared_ptr<WorkState> seen_;  // The state before on_done(); its error counts as collected.
  std::uint64_t token_ = 0;
  int unwinding_ = 0;  // std::uncaught_exceptions() at construction.
};

}  // namespace tutti
