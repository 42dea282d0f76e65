#include "work.hpp"

#include <utility>

#include "communicator.hpp"
#include "internal/current_error.hpp"

namespace tutti::backend::nccl {

EventState::EventState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Gpu> gpu,
                       std::span<const Op> ops, const Call& call, Deadline limit)
    : HostState(std::move(queue)), gpu_(std::move(gpu)), op_(ops[0]), call_(call), limit_(limit) {
  op_.rows = {};
  op_.send_rows = {};
  call_.name = {};
}

bool EventState::done() const noexcept {
  return HostState::done() || const_cast<EventState*>(this)->poll();
}

bool EventState::wait_until(Deadline deadline) {
  for (Pause pause; !done() && !forked(); pause())
    if (deadline.expired()) return false;
  return true;
}

void EventState::order(Stream stream) {
  for (Pause pause; !HostState::done() && !forked(); pause()) {
    const std::lock_guard lock(mutex_);
    if (!event_) continue;
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    return event_->hold(to_cuda(stream));
  }
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
    if (doomed_ || !event_) return false;
    try {
      if (!event_->done()) return false;
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  finish(thrown);
  return true;
}

void EventState::doom() noexcept {
  const std::lock_guard lock(mutex_);
  doomed_ = true;
}

}  // namespace tutti::backend::nccl
