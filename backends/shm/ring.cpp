#include "ring.hpp"

#include <algorithm>
#include <cstring>

namespace tutti::backend::shm {
namespace {

std::byte* data_of(SharedRing* ring) noexcept {
  return reinterpret_cast<std::byte*>(ring + 1);
}

}  // namespace

std::optional<std::size_t> RingSender::room() const noexcept {
  // Acquire: the receiver has read the bytes that this rank overwrites. Sequentially consistent
  // like every load after which a thread may sleep.
  const auto used = head_ - ring_->tail.load(std::memory_order_seq_cst);
  if (used > capacity_) return std::nullopt;
  const auto free = capacity_ - static_cast<std::size_t>(used);
  return free <= sizeof(Frame) ? 0 : free - sizeof(Frame);
}

void RingSender::push(Frame frame, const void* payload) noexcept {
  auto* const data = data_of(ring_);
  // The capacity is a multiple of a frame, so a frame is never cut.
  std::memcpy(data + head_ % capacity_, &frame, sizeof frame);
  const auto bytes = static_cast<std::size_t>(frame.payload);
  const auto at = static_cast<std::size_t>((head_ + sizeof frame) % capacity_);
  const auto first = std::min(bytes, capacity_ - at);
  if (first != 0) std::memcpy(data + at, payload, first);
  if (bytes > first)
    std::memcpy(data, static_cast<const std::byte*>(payload) + first, bytes - first);
  head_ += sizeof frame + whole_lines(bytes);
  // Release: publishes the frame. Sequentially consistent, because a load of Bell::sleeps follows.
  ring_->head.store(head_, std::memory_order_seq_cst);
}

RingReceiver::State RingReceiver::next(Frame& frame) noexcept {
  // Acquire: the frame is complete. Sequentially consistent, because the thread may sleep next.
  const auto filled = ring_->head.load(std::memory_order_seq_cst) - tail_;
  if (filled == 0) return State::empty;
  if (filled < sizeof frame || filled > capacity_) return State::corrupt;
  std::memcpy(&frame, data_of(ring_) + tail_ % capacity_, sizeof frame);
  const bool fits =
      frame.payload <= capacity_ && sizeof frame + whole_lines(frame.payload) <= filled;
  return fits ? State::frame : State::corrupt;
}

void RingReceiver::read(const Frame& frame, void* to) const noexcept {
  const auto bytes = static_cast<std::size_t>(frame.payload);
  const auto at = static_cast<std::size_t>((tail_ + sizeof frame) % capacity_);
  const auto first = std::min(bytes, capacity_ - at);
  if (first != 0) std::memcpy(to, data_of(ring_) + at, first);
  if (bytes > first)
    std::memcpy(static_cast<std::byte*>(to) + first, data_of(ring_), bytes - first);
}

void RingReceiver::pop(const Frame& frame) noexcept {
  tail_ += sizeof frame + whole_lines(frame.payload);
  // Release: the bytes have been read. Sequentially consistent, as above.
  ring_->tail.store(tail_, std::memory_order_seq_cst);
}

}  // namespace tutti::backend::shm
