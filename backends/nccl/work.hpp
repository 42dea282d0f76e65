#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "gpu.hpp"
#include "group/host_state.hpp"

namespace tutti::backend::nccl {

/// One that matches its counterpart by itself. What the front makes of a gather or the like is part
/// of a call of all ranks instead; its tag is not one of a caller's.
inline bool is_message(const Op& op, const Call& call) noexcept {
  return is_point_to_point(op.kind) && !(call.in_order && op.tag < 0);
}

/// A call in flight: an event behind it on the stream that it runs on. A caller that
/// asks ends it; the Watcher asks, too, so that then() and deadlines need no caller.
class EventState final : public internal::HostState {
 public:
  using Clock = std::chrono::steady_clock;

  EventState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Gpu> gpu,
             std::span<const Op> ops, const Call& call, Deadline limit);

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  /// Blocks the host only until the call has been queued, which a message may have to wait for.
  void block_stream(Stream stream) override;
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;

  /// The call has been queued, and `event` is the point behind it.
  void queued(Gpu::Event event);
  /// The call runs on Call::stream itself, which block_stream() need not put behind it.
  void run_on_its_stream() noexcept { on_its_stream_ = true; }
  /// Puts later work on `stream` behind the call, once that has been queued.
  void block(cudaStream_t stream);
  /// The call goes into a graph: it never ends, but block_stream() puts what is captured, too,
  /// behind it.
  void capture() noexcept { captured_ = true; }
  bool is_captured() const noexcept { return captured_; }
  /// Asks the event. True when the call has ended; an error of the device ends it too.
  bool poll() noexcept;
  /// Ignores the event from now on: the communicator is about to be aborted.
  void ignore_event() noexcept;

  /// Of several operations the first; without its rows.
  const Op& op() const noexcept { return op_; }
  const Call& call() const noexcept { return call_; }  ///< Without its name.
  bool is_message() const noexcept { return nccl::is_message(op_, call_); }
  Deadline limit() const noexcept { return limit_; }
  Clock::time_point since() const noexcept { return since_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  Op op_;
  Call call_;
  Deadline limit_;
  Clock::time_point since_ = Clock::now();
  std::mutex mutex_;
  std::optional<Gpu::Event> event_;
  bool ignores_event_ = false;
  bool on_its_stream_ = false;
  std::atomic<bool> captured_{false};
};

}  // namespace tutti::backend::nccl
