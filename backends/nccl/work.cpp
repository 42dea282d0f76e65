#include "work.hpp"

#include <algorithm>
#include <utility>

#include "communicator.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {

EventState::EventState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Gpu> gpu,
                       std::span<const Op> ops, const Call& call, Deadline limit)
    : HostState(std::move(queue)),
      gpu_(std::move(gpu)),
      op_(ops[0]),
      call_(call),
      limit_(limit),
      ends_in_order_(std::ranges::none_of(ops, [&](const Op& op) {
        return nccl::is_message(op, call) || op.kind == Operation::all_gather_bounded;
      })) {
  op_.rows = {};
  op_.send_rows = {};
  call_.name = {};
}

namespace {

[[noreturn]] void refuse_captured(const char* what) {
  internal::failf(Errc::unsupported,
                  "the call was captured into a CUDA graph and runs when the graph is launched; {}",
                  what);
}

}  // namespace

bool EventState::done() const noexcept {
  if (captured_) return false;
  return call_.blocking ? HostState::done() : const_cast<EventState*>(this)->poll();
}

bool EventState::wait_until(Deadline deadline) {
  if (captured_) return false;
  if (HostState::done() || forked()) return true;
  std::exception_ptr thrown;
  {
    const DeviceScope scope(gpu_->cuda(), gpu_->index(), std::nothrow);
    const cuda::RelaxedCapture relaxed(gpu_->cuda());
    for (Pause pause; !has_ended(thrown); pause())
      if (deadline.expired()) return false;
  }
  end(thrown);
  return true;
}

void EventState::block_stream(Stream stream) {
  const bool own = stream.handle == call_.stream.handle;
  if (captured_) {
    if (own && on_its_stream_) return;
    if (!cuda::is_capturing(*gpu_, to_cuda(stream)))
      refuse_captured("only a stream of the same capture can wait for it");
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    return event_->block(to_cuda(stream));
  }
  for (Pause pause; !HostState::done() && !forked(); pause()) {
    const std::lock_guard lock(mutex_);
    if (!event_) continue;
    if (own && on_its_stream_) return;
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    return event_->block(to_cuda(stream));
  }
}

void EventState::block(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (!event_) return;
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  event_->block(stream);
}

std::shared_ptr<WorkState> EventState::then(std::function<void()> next) {
  if (captured_) refuse_captured("Work::then() cannot be captured");
  has_continuation_ = true;
  return HostState::then(std::move(next));
}

std::shared_ptr<WorkState> EventState::on_done(std::function<void(const Error*)> f) {
  if (captured_) refuse_captured("Work::on_done() and Work::detach() cannot be captured");
  has_continuation_ = true;
  return HostState::on_done(std::move(f));
}

void EventState::queued(Gpu::Event event) {
  const std::lock_guard lock(mutex_);
  event_.emplace(std::move(event));
}

bool EventState::has_ended(std::exception_ptr& thrown) noexcept {
  if (HostState::done()) return true;
  const std::lock_guard lock(mutex_);
  if (ignores_event_ || !event_) return false;
  try {
    if (!event_->done()) return false;
  } catch (...) {
    thrown = std::current_exception();
  }
  return true;
}

void EventState::end(const std::exception_ptr& thrown) noexcept {
  finish(thrown);
  const std::lock_guard lock(mutex_);
  event_.reset();  // For a later call. No stream has to wait for a call that has ended.
}

bool EventState::poll() noexcept {
  if (HostState::done()) return true;
  std::exception_ptr thrown;
  if (!has_ended(thrown)) return false;
  end(thrown);
  return true;
}

void EventState::ignore_event() noexcept {
  const std::lock_guard lock(mutex_);
  ignores_event_ = true;
}

}  // namespace tutti::backend::nccl
