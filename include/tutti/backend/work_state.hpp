#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string_view>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/error.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// A backend's side of a call in flight. All functions from any thread.
class WorkState {
 public:
  virtual ~WorkState();
  virtual bool done() const noexcept = 0;  ///< True after the end, with an error or without.
  /// Blocks the host until the call is done or the deadline has passed. True if done; never throws
  /// the call's error. Returns false before the deadline only for a call captured into a graph,
  /// which is never done.
  virtual bool wait_until(Deadline deadline) = 0;
  /// The call's error, once done; null: none. Reported only when no transport can access the
  /// buffers any more.
  virtual std::exception_ptr error() const noexcept = 0;
  /// Orders work that is queued on `stream` from now on after this call.
  virtual void block_stream(Stream stream) = 0;
  /// Runs `next` once this is done without an error; the result is done after `next`. `next` runs
  /// on the group's worker after the call has ended, on a device too.
  virtual std::shared_ptr<WorkState> then(std::function<void()> next) = 0;
  /// Calls `f`, which does not throw, once this is done: with null, or with the error. The result
  /// is done after `f` and has the error of this; its block_stream() waits for this only. `f` runs
  /// on the group's worker, never on a transport's thread or a thread that aborts. Exception:
  /// without a worker (forked child, group destroyed), `f` runs on the thread that notices the end.
  /// @throws Error resource_exhausted, unsupported; `f` is then never called.
  virtual std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) = 0;
  /// Ends one send or receive with `why`: its peer has made another call and will never match this
  /// one. False if the transport cannot: then the group has to be aborted.
  virtual bool withdraw(const Error& why) noexcept;
};

/// The group's side of a call in flight: receives the call's outcome. All functions from any
/// thread.
class WorkOwner {
 public:
  virtual ~WorkOwner();
  /// Reports that the call with this token has ended and its outcome was collected. `failed`: the
  /// outcome is an error.
  virtual void collected(std::uint64_t token, bool failed) noexcept = 0;
  /// Receives an error that was not collected.
  virtual void uncollected(const Error& error) noexcept = 0;
  /// Reports that a callback of Work::on_done() threw this error.
  virtual void callback_threw(const Error& error) noexcept = 0;
  virtual void abort(std::string_view why) noexcept = 0;  ///< See ProcessGroup::abort().
};

}  // namespace tutti
