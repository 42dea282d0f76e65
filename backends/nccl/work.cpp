#include "work.hpp"

#include <utility>

#include "communicator.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {

EventState::EventState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Gpu> gpu,
                       std::span<const Op> ops, const Call& call, Deadline limit)
    : HostState(std::move(queue)), gpu_(std::move(gpu)), op_(ops[0]), call_(call), limit_(limit) {
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
  return HostState::done() || const_cast<EventState*>(this)->poll();
}

bool EventState::wait_until(Deadline deadline) {
  if (captured_) return false;
  for (Pause pause; !done() && !forked(); pause())
    if (deadline.expired()) return false;
  return true;
}

void EventState::block_stream(Stream stream) {
  if (captured_) {
    if (!cuda::is_capturing(*gpu_, to_cuda(stream)))
      refuse_captured("only a stream of the same capture can wait for it");
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    return event_->block(to_cuda(stream));
  }
  for (Pause pause; !HostState::done() && !forked(); pause()) {
    const std::lock_guard lock(mutex_);
    if (!event_) continue;
    if (on_its_stream_ && stream.handle == call_.stream.handle) return;
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

bool EventState::poll() noexcept {
  if (HostState::done()) return true;
  std::exception_ptr thrown;
  {
    const std::lock_guard lock(mutex_);
    if (ignores_event_ || !event_) return false;
    try {
      if (!event_->done()) return false;
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  finish(thrown);
  return true;
}

void EventState::ignore_event() noexcept {
  const std::lock_guard lock(mutex_);
  ignores_event_ = true;
}

}  // namespace tutti::backend::nccl
