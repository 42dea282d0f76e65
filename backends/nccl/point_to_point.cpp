#include "point_to_point.hpp"

#include <utility>

#include <fmt/format.h>

namespace tutti::backend::nccl {

void SelfMailbox::post(Message message) {
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

void SelfMailbox::copy(Message& send, Message& recv) {
  if (send.bytes != recv.bytes) {
    const auto error = std::make_exception_ptr(Error(
        Errc::mismatch,
        fmt::format("this rank sends {} bytes to itself and receives {}; the sizes must be equal",
                    send.bytes, recv.bytes)));
    send.state->finish(error);
    return recv.state->finish(error);
  }
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  send.input.block(stream_.get());
  recv.input.block(stream_.get());
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

PointToPoint::PointToPoint(std::shared_ptr<Gpu> gpu, Store& store, Memory& memory, int rank,
                           const Failure& failure)
    : gpu_(std::move(gpu)),
      store_(store),
      memory_(memory),
      rank_(rank),
      failure_(failure),
      self_(gpu_) {}

void PointToPoint::post(const std::shared_ptr<EventState>& state) {
  const auto& op = state->op();
  const bool sends = op.kind == Operation::send;
  Message message{state, gpu_->event(), sends ? const_cast<void*>(op.in.data) : op.out.data,
                  sends ? op.in.bytes() : op.out.bytes()};
  {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    message.input.record(to_cuda(state->call().stream));
  }
  if (op.peer == rank_) return self_.post(std::move(message));
  const auto to = channel(op);
  to->post(std::move(message));
  to->advance();
}

bool PointToPoint::advance() {
  bool idle = true;
  for (const auto& channel : channels()) {
    channel->advance();
    idle = channel->is_idle() && idle;
  }
  return idle;
}

void PointToPoint::give_up() noexcept {
  for (const auto& channel : channels()) channel->give_up();
}

std::shared_ptr<Channel> PointToPoint::channel(const Op& op) {
  const bool sends = op.kind == Operation::send;
  const std::lock_guard lock(mutex_);
  // Makes no channel in a broken group, whose abort covers only the existing ones.
  failure_.require_intact();
  auto& found = channels_[{sends, op.peer, op.tag}];
  if (found == nullptr)
    found = std::make_shared<Channel>(
        gpu_, store_,
        fmt::format("id/{}.{}.{}", sends ? rank_ : op.peer, sends ? op.peer : rank_, op.tag), sends,
        memory_);
  return found;
}

std::vector<std::shared_ptr<Channel>> PointToPoint::channels() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Channel>> all;
  for (const auto& [key, channel] : channels_) all.push_back(channel);
  return all;
}

std::vector<cudaStream_t> PointToPoint::streams() const {
  std::vector<cudaStream_t> all{self_.stream()};
  for (const auto& channel : channels()) all.push_back(channel->stream());
  return all;
}

Communicators PointToPoint::communicators() const {
  Communicators all;
  for (const auto& channel : channels()) all.push_back(channel->communicator());
  return all;
}

}  // namespace tutti::backend::nccl
