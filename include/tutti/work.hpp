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

/// A call in flight. It borrows the caller's buffers, so it must end before they do. A resource
/// type: move-only. One thread at a time.
///
/// An error that nobody collected (wait(), error()) breaks the group: its next call throws it.
/// The destructor waits for the call, which ends by its own deadline; while an exception unwinds
/// the stack it aborts the group first. A default-made Work is finished.
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
  /// Runs `next` after the call, on the group's worker; for a finished Work it runs now. The new
  /// Work ends after `next` and carries what it threw. An error skips it. `next` may make async
  /// calls on the group; a blocking one would wait for itself and is refused.
  Work then(std::function<void()> next) &&;
  /// One Work for all of them; the first error in their order is the one it throws.
  static Work all(std::span<Work> works);

  /// For backends and decorators: what it waits for, null when finished. It stays owned by this.
  const std::shared_ptr<WorkState>& state() const noexcept { return state_; }
  /// For decorators: takes the state out, without waiting.
  std::shared_ptr<WorkState> release() && noexcept { return std::move(state_); }

 private:
  void settle() noexcept;  // What the destructor does.

  std::shared_ptr<WorkState> state_;
  std::shared_ptr<WorkOwner> owner_;
  std::uint64_t token_ = 0;
  int unwinding_ = 0;  // std::uncaught_exceptions() when it was made.
};

}  // namespace tutti
