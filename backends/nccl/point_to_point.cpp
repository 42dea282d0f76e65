#include "point_to_point.hpp"

#include <utility>

#include <fmt/format.h>

namespace tutti::backend::nccl {

void SelfBox::post(Message message) {
  const std::lock_guard lock(mutex_);
  const auto& op = message.state->op();
  auto& queue = waiting_[op.tag];
  if (queue.empty() || queue.front().state->op().kind == op.kind)
    return queue.push_back(std::move(message));
  if (op.kind == Operation::send)
    copy(message, queue.front());
  else
    copy(queue.front(), message);
  queue.pop_front();
}

void SelfBox::copy(Message& send, Message& recv) {
  if (send.bytes != recv.bytes) {
    const auto error = std::make_exception_ptr(Error(
        Errc::mismatch,
        fmt::format("this rank sends {} bytes to itself and receives {}", send.bytes, recv.bytes)));
    send.state->finish(error);
    return recv.state->finish(error);
  }
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  send.input.hold(stream_.get());
  recv.input.hold(stream_.get());
  if (send.bytes != 0 && send.data != recv.data)
    check(gpu_->cuda(),
          gpu_->cuda().memcpy_async(recv.data, send.data, send.bytes, cudaMemcpyDeviceToDevice,
                                    stream_.get()),
          "cudaMemcpyAsync");
  for (const auto* message : {&send, &recv}) {
    auto event = gpu_->event();
    event.record(stream_.get());
    message->state->queued(std::move(event));
  }
}

}  // namespace tutti::backend::nccl
