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

/// A call in flight. It borrows the caller's buffers, so it must end before they do. A resource
/// type: move-only. One thread at a time.
///
/// An error that nobody collected (wait(), error()) breaks the group: its next call throws it.
/// The destructor waits for the call, which ends by its own deadline; while an exception unwinds
/// the stack it aborts the group first. A default-made Work is finished.
class [[nodiscard]] Work {
 public:
  /// What a backend implements. Called from any thread.
  class State {
   public:
    virtual ~State();
    virtual bool done() const noexcept = 0;
    /// Blocks the host. True when done; never throws what went wrong. False before the deadline
    /// only for a call that was captured into a graph: it is never done.
    virtual bool wait_until(Deadline deadline) = 0;
    /// What went wrong, once done; raised only when no transport can touch the buffers any more.
    virtual std::exception_ptr error() const noexcept = 0;
    /// Work queued on `stream` from now on comes after this call.
    virtual void order(Stream stream) = 0;
    /// Runs `next` once this is done without an error; the result is done after it. On host
    /// memory it runs on the group's worker, on a device it is called in order of the
    /// communication stream, to queue more on it.
    virtual std::shared_ptr<State> then(std::function<void()> next) = 0;
    /// Ends one send or receive with this error, because its peer has made another call and will
    /// never make this one. False where the transport cannot: then the group has to be aborted.
    virtual bool withdraw(const Error& why) noexcept;
  };

  /// Who is told how a call ended: the group.
  class Owner {
   public:
    virtual ~Owner();
    /// The call with this token was waited for.
    virtual void collected(std::uint64_t token, bool failed) noexcept = 0;
    virtual void uncollected(const Error& error) noexcept = 0;
    virtual void abort(std::string_view why) noexcept = 0;
  };

  Work() noexcept = default;
  explicit Work(std::shared_ptr<State> state, std::shared_ptr<Owner> owner = {},
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
  void order(Stream stream);
  /// Runs `next` after the call, on the group's worker; for a finished Work it runs now. The new
  /// Work ends after `next` and carries what it threw. An error skips it. `next` may make async
  /// calls on the group; a blocking one would wait for itself and is refused.
  Work then(std::function<void()> next) &&;
  /// One Work for all of them; the first error in their order is the one it throws.
  static Work all(std::span<Work> works);

  /// For backends and decorators: what it waits for, null when finished. It stays owned by this.
  const std::shared_ptr<State>& state() const noexcept { return state_; }
  /// For decorators: takes the state out, without waiting.
  std::shared_ptr<State> release() && noexcept { return std::move(state_); }

 private:
  void settle() noexcept;  // What the destructor does.

  std::shared_ptr<State> state_;
  std::shared_ptr<Owner> owner_;
  std::uint64_t token_ = 0;
  int unwinding_ = 0;  // std::uncaught_exceptions() when it was made.
};

}  // namespace tutti
