#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "backend/host_state.hpp"
#include "gpu.hpp"

namespace tutti::backend::nccl {

/// True for a send or receive that the program called. The sends and receives of a lowered gather,
/// scatter or all_to_all are part of a call of all ranks and have a reserved tag.
inline bool is_message(const Op& op, const Call& call) noexcept {
  return is_point_to_point(op.kind) && !(call.in_order && op.tag < 0);
}

/// A call in flight, with an event after it on its stream. A query that finds the event complete
/// ends the call. The Watcher queries too, so then() and deadlines need no waiting caller.
class EventState final : public internal::HostState {
 public:
  using Clock = std::chrono::steady_clock;

  EventState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Gpu> gpu,
             std::span<const Op> ops, const Call& call, Deadline limit);

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  /// Orders later work on `stream` after the call. Blocks the host until the call has been queued:
  /// for the first message of a sender, receiver and tag, until the peer has made its side.
  void block_stream(Stream stream) override;
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;

  /// Records that the call has been queued. `event`: the point after it.
  void queued(Gpu::Event event);
  /// Records that the call runs on Call::stream, so that block_stream() skips this stream.
  void run_on_its_stream() noexcept { on_its_stream_ = true; }
  /// Orders later work on `stream` after the call. Does nothing before the call has been queued.
  void block(cudaStream_t stream);
  /// Records that the call is captured into a graph: the call never ends, and block_stream() orders
  /// captured work after it.
  void capture() noexcept { captured_ = true; }
  bool is_captured() const noexcept { return captured_; }
  /// True if a function waits for the end of the call.
  bool has_continuation() const noexcept { return has_continuation_; }
  /// Queries the event. True when the call has ended. A device error ends the call too.
  bool poll() noexcept;
  /// Ignores the event from now on: the communicator is about to be aborted.
  void ignore_event() noexcept;

  /// The operation, or the first of several; without its rows.
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
  std::atomic<bool> has_continuation_{false};
};

}  // namespace tutti::backend::nccl
