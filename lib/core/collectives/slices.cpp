#include "collectives/functions.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "collectives/blocks.hpp"
#include "collectives/direct_fold.hpp"
#include "collectives/exchange.hpp"
#include "collectives/reducer.hpp"
#include "collectives/ring.hpp"

namespace tutti::collectives {
namespace {

constexpr std::size_t pair_slots = 4;

/// Message size for half an array between two ranks. With a few messages, the fold of one overlaps
/// the arrival of the next.
std::size_t pair_message(std::size_t half) {
  return std::clamp(std::bit_ceil(half / 2), 2 * segment, std::size_t{1} << 20);
}

std::size_t pair_memory(std::size_t half) {
  return pair_slots * std::min(pair_message(half), half) + 64;
}

/// The algorithm for two ranks. Each folds half of the array and returns each folded message at
/// once, interleaved with messages of the half that its peer folds.
void all_reduce_pair(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int peer = 1 - me;
  const Reducer reducer(op, 2);
  const auto half = (op.in.bytes() + 1) / 2 + 64;
  Arena arena(wire, Blocks::memory(2) + pair_memory(half) + 2 * sizeof(double) + 64);
  const Blocks blocks(arena, op.in.bytes(), 2);
  const auto message = pair_message(blocks.bytes(0));
  auto* const slots = arena.take(pair_slots * std::min(message, half)).data();
  const auto scales =
      arena.take<double>(2);  // In the arena: messages may outlive this function on an error.
  scales[0] = scales[1] = reducer.scale();
  if (reducer.scaled()) {
    wire.recv(peer, writable(&scales[index(peer)]), sizeof(double));
    wire.send(peer, &scales[index(me)], sizeof(double));
    wire.wait_recv();
    wire.wait_sends();
  }
  auto* const out = static_cast<Bytes>(op.out.data);
  const auto piece_of = [&](int block, std::size_t k) {
    const auto from = std::min(k * message, blocks.bytes(block));
    return std::pair(blocks.offset(block) + from, std::min(message, blocks.bytes(block) - from));
  };
  const auto slot = [&](std::size_t k) { return slots + k % pair_slots * message; };
  const auto post = [&](std::size_t k) {
    if (const auto [at, n] = piece_of(me, k); n != 0) wire.recv(peer, slot(k), n);
    if (const auto [at, n] = piece_of(peer, k); n != 0)
      wire.send(peer, writable(op.in.data) + at, n);
  };
  const auto count = messages_of(blocks.bytes(0), message);  // The first half is not smaller.
  for (std::size_t k = 0; k < std::min(pair_slots, count); ++k) post(k);
  // The receives in the order of posting: pair_slots messages to fold, then a folded message and a
  // message to fold in alternation.
  const auto result = [&](std::size_t k) {
    if (const auto [at, n] = piece_of(peer, k); n != 0) wire.wait_recv();
  };
  for (std::size_t k = 0; k < count; ++k) {
    if (k >= pair_slots) result(k - pair_slots);
    const auto [at, n] = piece_of(me, k);
    if (n != 0) {
      wire.wait_recv();
      const void* theirs = slot(k);
      const void* mine = static_cast<const std::byte*>(op.in.data) + at;
      const void* const inputs[] = {me == 0 ? mine : theirs, me == 0 ? theirs : mine};
      reducer.fold(out + at, inputs, scales, n);
      wire.send(peer, out + at, n);
    }
    if (const auto [to, bytes] = piece_of(peer, k); bytes != 0) wire.recv(peer, out + to, bytes);
    if (k + pair_slots < count) post(k + pair_slots);
  }
  for (std::size_t k = count - std::min(pair_slots, count); k < count; ++k) result(k);
  wire.wait_sends();
}

}  // namespace

void all_reduce_slices(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  if (size == 2) return all_reduce_pair(wire, op);
  const Reducer reducer(op, size);
  Arena arena(wire, Blocks::memory(size) + gather_ring_memory(size) +
                        block_fold_memory(size, op.in.bytes() / index(size) + 128));
  const Blocks blocks(arena, op.in.bytes(), size);
  auto* out = static_cast<Bytes>(op.out.data);
  fold_block(wire, arena, reducer, blocks, op.in.data, out + blocks.offset(me));
  gather_ring(wire, arena, blocks, out);
}

void reduce_slices(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const Reducer reducer(op, size);
  const auto slice = op.in.bytes() / index(size) + 128;
  Arena arena(wire, Blocks::memory(size) + block_fold_memory(size, slice) + slice +
                        index(size) * sizeof(Flow));
  const Blocks blocks(arena, op.in.bytes(), size);
  const bool root = me == op.root;
  auto* out = static_cast<Bytes>(op.out.data);
  auto* mine = root ? out + blocks.offset(me) : arena.take(slice).data();
  fold_block(wire, arena, reducer, blocks, op.in.data, mine);
  if (!root) {
    const Flow send{op.root, mine, blocks.bytes(me)};
    return exchange(wire, {&send, 1}, {});
  }
  const auto recvs = arena.take<Flow>(index(size));
  std::size_t n = 0;
  for (int r = 0; r < size; ++r)
    if (r != me) recvs[n++] = {r, out + blocks.offset(r), blocks.bytes(r)};
  exchange(wire, {}, recvs.first(n));
}

}  // namespace tutti::collectives
