#include "collectives/direct_fold.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "collectives/exchange.hpp"
#include "collectives/functions.hpp"

namespace tutti::collectives {
namespace {

/// The same part of several ranks' arrays, reduced by a left fold in rank order.
struct DirectFold {
  int first = 0;  ///< The arrays of ranks first .. last are folded.
  int last = 0;
  const void* mine = nullptr;  ///< This rank's own part.
  void* out = nullptr;
  std::size_t bytes = 0;  ///< 0: this rank folds nothing.
};

constexpr std::size_t fold_slots = 4;

std::size_t fold_memory(int size, std::size_t bytes) {
  const auto message = message_for(size, fold_slots);
  const auto per_peer = std::min(fold_slots * message, std::max<std::size_t>(bytes, 1));
  return index(size) * (per_peer + 64 + 2 * sizeof(Flow) + sizeof(void*) + sizeof(double)) + 64;
}

/// Receives and folds. At the same time sends `sends`, the parts of this rank's array that other
/// ranks need.
void fold_direct(Wire& wire, Arena& arena, const Reducer& reducer, std::span<const Flow> sends,
                 const DirectFold& f) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto message = message_for(size, fold_slots);
  const auto ranks = index(f.last - f.first + 1);
  const auto recvs = arena.take<Flow>(index(size));
  const auto inputs = arena.take<const void*>(index(size));
  const auto scales = arena.take<double>(index(size));
  if (reducer.scaled()) {  // All ranks exchange scales, even if they fold nothing.
    scales[index(me)] = reducer.scale();
    const auto to = arena.take<Flow>(index(size));
    std::size_t n = 0;
    for (int i = 1; i < size; ++i) {
      const int next = (me + i) % size;
      const int prev = (me + size - i) % size;
      to[n] = {next, writable(&scales[index(me)]), sizeof(double)};
      recvs[n++] = {prev, writable(&scales[index(prev)]), sizeof(double)};
    }
    exchange(wire, to.first(n), recvs.first(n));
  }
  std::size_t n = 0;
  for (int r = f.first; r <= f.last && f.bytes != 0; ++r) {
    if (r == me) continue;
    const auto slots = arena.take(std::min(fold_slots * message, f.bytes));
    recvs[n++] = {r, slots.data(), f.bytes, fold_slots};
  }
  exchange(wire, sends, recvs.first(n), message, fold_slots, [&](std::size_t k) {
    const auto from = k * message;
    if (from >= f.bytes) return;
    std::size_t next = 0;
    for (int r = f.first; r <= f.last; ++r)
      inputs[index(r - f.first)] = r == me ? static_cast<const std::byte*>(f.mine) + from
                                           : piece(recvs[next++], k, message).data;
    reducer.fold(static_cast<Bytes>(f.out) + from, inputs.first(ranks),
                 scales.subspan(index(f.first), ranks), std::min(message, f.bytes - from));
  });
}

}  // namespace

std::size_t block_fold_memory(int size, std::size_t bytes) {
  return fold_memory(size, bytes) + index(size) * sizeof(Flow);
}

void fold_block(Wire& wire, Arena& arena, const Reducer& reducer, const Blocks& blocks,
                const void* in, void* out) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto sends = arena.take<Flow>(index(size - 1));
  for (int i = 1; i < size; ++i) {
    const int next = (me + i) % size;
    sends[index(i - 1)] = {next, writable(in) + blocks.offset(next), blocks.bytes(next)};
  }
  fold_direct(wire, arena, reducer, sends,
              {0, size - 1, writable(in) + blocks.offset(me), out, blocks.bytes(me)});
}

void all_reduce_direct(Wire& wire, const Op& op) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, fold_memory(size, op.in.bytes()) + index(size) * sizeof(Flow));
  const auto sends = arena.take<Flow>(index(size - 1));
  for (int i = 1; i < size; ++i)
    sends[index(i - 1)] = {(wire.rank() + i) % size, writable(op.in.data), op.in.bytes()};
  fold_direct(wire, arena, reducer, sends, {0, size - 1, op.in.data, op.out.data, op.in.bytes()});
}

void reduce_direct(Wire& wire, const Op& op) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, fold_memory(size, op.in.bytes()));
  const bool root = wire.rank() == op.root;
  const Flow send{op.root, writable(op.in.data), op.in.bytes()};
  fold_direct(wire, arena, reducer, {&send, root ? 0U : 1U},
              {0, size - 1, op.in.data, op.out.data, root ? op.in.bytes() : 0});
}

void reduce_scatter_direct(Wire& wire, const Op& op) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, Blocks::memory(size) + block_fold_memory(size, op.out.bytes()));
  const Blocks blocks(arena, op.rows, size, op.in.row_bytes());
  fold_block(wire, arena, reducer, blocks, op.in.data, op.out.data);
}

void scan_direct(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const bool exclusive = op.kind == Operation::exclusive_scan;
  const Reducer reducer(op, size);
  const auto bytes = op.in.bytes();
  // An exclusive scan does not fold the rank's own array: rank 0 folds nothing and writes the
  // identity.
  Arena arena(wire, fold_memory(size, bytes) + index(size) * sizeof(Flow));
  const auto sends = arena.take<Flow>(index(size));
  std::size_t to = 0;
  for (int r = me + 1; r < size; ++r) sends[to++] = {r, writable(op.in.data), bytes};
  const int last = exclusive ? me - 1 : me;
  fold_direct(wire, arena, reducer, sends.first(to),
              {0, std::max(last, 0), op.in.data, op.out.data, last < 0 ? 0 : bytes});
  if (last < 0) reducer.identity(op.out.data, bytes);
}

}  // namespace tutti::collectives
