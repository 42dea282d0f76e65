#include "collectives/functions.hpp"

#include <algorithm>
#include <cstddef>

#include "collectives/blocks.hpp"
#include "collectives/exchange.hpp"
#include "collectives/reducer.hpp"

namespace tutti::collectives {

void broadcast_chain(Wire& wire, const Op& op) {
  constexpr std::size_t ahead = 8;  // Messages posted in each direction.
  const int size = wire.size();
  const int position = (wire.rank() + size - op.root) % size;
  const int prev = position == 0 ? -1 : (wire.rank() + size - 1) % size;
  const int next = position == size - 1 ? -1 : (wire.rank() + 1) % size;
  const auto bytes = op.out.bytes();
  auto* data = static_cast<Bytes>(op.out.data);
  if (position == 0) copy_bytes(data, op.in.data, bytes);
  // Two ranks forward nothing, so their messages may be larger.
  const auto message = size == 2 ? max_message : segment;
  const auto count = messages_of(bytes, message);
  const auto size_of_piece = [&](std::size_t k) { return std::min(message, bytes - k * message); };
  std::size_t posted = 0;
  const auto post_up_to = [&](std::size_t end) {
    for (; prev >= 0 && posted < std::min(end, count); ++posted)
      wire.recv(prev, data + posted * message, size_of_piece(posted));
  };
  post_up_to(ahead);
  for (std::size_t k = 0; k < count; ++k) {
    if (prev >= 0) wire.wait_recv();
    if (next >= 0) wire.send(next, data + k * message, size_of_piece(k));
    wire.wait_sends(ahead - 1);
    post_up_to(k + 1 + ahead);
  }
  wire.wait_sends();
}

void reduce_chain(Wire& wire, const Op& op) {
  constexpr std::size_t slots = 16;
  const int size = wire.size();
  const bool scan = op.kind != Operation::reduce;
  const bool exclusive = op.kind == Operation::exclusive_scan;
  const int position = scan ? wire.rank() : (wire.rank() + size - op.root - 1) % size;
  const bool first = position == 0;
  const bool last = position == size - 1;
  const Reducer reducer(op, size);
  const auto bytes = op.in.bytes();
  Arena arena(wire, (2 * slots + 1) * segment);
  auto* const room = arena.take(slots * segment).data();
  auto* const sum = arena.take(slots * segment).data();
  auto* const prepared = arena.take(segment).data();
  auto* out = static_cast<Bytes>(op.out.data);
  const auto slot = [&](Bytes base, std::size_t k) { return base + k % slots * segment; };
  const auto size_of_piece = [&](std::size_t k) { return std::min(segment, bytes - k * segment); };

  // A rank sends other data than it receives, so each direction has its own memory.
  std::size_t posted = 0;
  const auto count = messages_of(bytes, segment);
  const int prev = first ? -1 : (wire.rank() + size - 1) % size;
  const int next = last ? -1 : (wire.rank() + 1) % size;
  const auto post_up_to = [&](std::size_t end) {
    for (; prev >= 0 && posted < std::min(end, count); ++posted)
      wire.recv(prev, slot(room, posted), size_of_piece(posted));
  };
  post_up_to(slots);
  for (std::size_t k = 0; k < count; ++k) {
    const auto n = size_of_piece(k);
    const auto* own = writable(op.in.data) + k * segment;
    auto* const total = slot(sum, k);
    if (!first) wire.wait_recv();
    if (next >= 0) wire.wait_sends(slots - 1);
    if (first) {
      reducer.prepare(total, own, n);
    } else if (reducer.scaled()) {
      reducer.prepare(prepared, own, n);
      reducer.combine(total, slot(room, k), prepared, n);
    } else {
      reducer.combine(total, slot(room, k), own, n);
    }
    if (exclusive) {
      if (first)
        reducer.identity(out + k * segment, n);
      else
        copy_bytes(out + k * segment, slot(room, k), n);
    } else if (scan || last) {
      copy_bytes(out + k * segment, total, n);
      if (!scan) reducer.finish(out + k * segment, n);
    }
    if (next >= 0) wire.send(next, total, n);
    post_up_to(k + 1 + slots);
  }
  wire.wait_sends();
}

}  // namespace tutti::collectives
