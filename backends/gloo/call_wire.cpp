#include "call_wire.hpp"

#include "values/hash.hpp"

namespace tutti::backend::gloo {

std::uint64_t CallWire::slot_of(std::size_t bytes) const noexcept {
  if (!sizes_differ_) return slot_;
  internal::Hash hash;
  hash.add(slot_);
  hash.add(bytes);
  return hash.value();
}

void CallWire::send(int to, const void* data, std::size_t bytes) {
  // Gloo has one kind of buffer; it only reads what it sends.
  auto& message =
      sends_.emplace_back(place_.mesh, mesh_rank(to), const_cast<void*>(data), bytes, place_.call);
  message.send(slot_of(bytes));
}

void CallWire::recv(int from, void* data, std::size_t bytes) {
  auto& message = recvs_.emplace_back(place_.mesh, mesh_rank(from), data, bytes, place_.call);
  message.recv(slot_of(bytes));
}

void CallWire::wait_recv() {
  recvs_.front().wait(limit_);
  recvs_.pop_front();
}

void CallWire::wait_sends(std::size_t left) {
  while (sends_.size() > left) {
    sends_.front().wait(limit_);
    sends_.pop_front();
  }
}

}  // namespace tutti::backend::gloo
