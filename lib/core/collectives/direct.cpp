#include "collectives/functions.hpp"

#include <algorithm>
#include <cstddef>

#include <tutti/error.hpp>

#include "collectives/blocks.hpp"
#include "collectives/exchange.hpp"
#include "values/group_errors.hpp"

namespace tutti::collectives {
namespace {

/// Gathers to all ranks, or to the root.
void gather(Wire& wire, const Op& op, bool to_all) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire, Blocks::memory(size) + 2 * index(size) * sizeof(Flow));
  const bool receives = to_all || me == op.root;
  const auto row_bytes = receives ? op.out.row_bytes() : 0;
  const Blocks blocks(arena, op.rows, size, row_bytes);
  const auto sends = arena.take<Flow>(index(size));
  const auto recvs = arena.take<Flow>(index(size));
  std::size_t to = 0;
  std::size_t from = 0;
  for (int i = 1; i < size; ++i) {
    const int next = (me + i) % size;
    const int prev = (me + size - i) % size;
    if (to_all || next == op.root) sends[to++] = {next, writable(op.in.data), op.in.bytes()};
    if (receives)
      recvs[from++] = {prev, static_cast<Bytes>(op.out.data) + blocks.offset(prev),
                       blocks.bytes(prev)};
  }
  if (receives)
    copy_bytes(static_cast<Bytes>(op.out.data) + blocks.offset(me), op.in.data, op.in.bytes());
  exchange(wire, sends.first(to), recvs.first(from));
}

}  // namespace

void all_gather_direct(Wire& wire, const Op& op) {
  gather(wire, op, true);
}

void gather_direct(Wire& wire, const Op& op) {
  gather(wire, op, false);
}

void all_gather_bounded_direct(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto bound = op.out.bytes() / index(size);
  auto* out = static_cast<Bytes>(op.out.data);
  const auto* in = writable(op.in.data);
  copy_bytes(out + index(me) * bound, in, op.in.bytes());
  // The last messages of a sender may be short or empty.
  for (std::size_t from = 0; from < bound; from += max_message) {
    const auto most = std::min(max_message, bound - from);
    const auto mine = std::min(most, op.in.bytes() - std::min(from, op.in.bytes()));
    for (int i = 1; i < size; ++i) {
      const int prev = (me + size - i) % size;
      wire.recv_at_most(prev, out + index(prev) * bound + from, most);
    }
    for (int i = 1; i < size; ++i) wire.send((me + i) % size, mine == 0 ? in : in + from, mine);
    for (int i = 1; i < size; ++i) wire.wait_recv();
    wire.wait_sends();
  }
}

void scatter_direct(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire, Blocks::memory(size) + index(size) * sizeof(Flow));
  if (me != op.root) {
    const Flow recv{op.root, static_cast<Bytes>(op.out.data), op.out.bytes()};
    return exchange(wire, {}, {&recv, 1});
  }
  const Blocks blocks(arena, op.rows, size, op.in.row_bytes());
  const auto sends = arena.take<Flow>(index(size));
  std::size_t to = 0;
  for (int i = 1; i < size; ++i) {
    const int next = (me + i) % size;
    sends[to++] = {next, writable(op.in.data) + blocks.offset(next), blocks.bytes(next)};
  }
  copy_bytes(op.out.data, writable(op.in.data) + blocks.offset(me), blocks.bytes(me));
  exchange(wire, sends.first(to), {});
}

namespace {

/// Sends every peer the rows of its block, before any data moves: only two ranks know each count,
/// so fingerprints leave them out. @throws Error mismatch.
void compare_counts(Wire& wire, const Op& op, Arena& arena) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto sent = arena.take<std::int64_t>(index(size));
  const auto theirs = arena.take<std::int64_t>(index(size));
  for (int i = 1; i < size; ++i) {
    const int prev = (me + size - i) % size;
    wire.recv(prev, &theirs[index(prev)], sizeof theirs[0]);
  }
  for (int i = 1; i < size; ++i) {
    const int next = (me + i) % size;
    sent[index(next)] = op.send_rows[next];
    wire.send(next, &sent[index(next)], sizeof sent[0]);
  }
  for (int i = 1; i < size; ++i) wire.wait_recv();
  wire.wait_sends();
  for (int r = 0; r < size; ++r)
    if (r != me && theirs[index(r)] != op.rows[r])
      throw Error(Errc::mismatch, internal::rows_text(r, me, theirs[index(r)], op.rows[r]));
}

}  // namespace

void all_to_all_direct(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire,
              2 * Blocks::memory(size) + 2 * index(size) * (sizeof(Flow) + sizeof(std::int64_t)));
  compare_counts(wire, op, arena);
  const Blocks from(arena, op.send_rows, size, op.in.row_bytes());
  const Blocks to(arena, op.rows, size, op.out.row_bytes());
  const auto sends = arena.take<Flow>(index(size));
  const auto recvs = arena.take<Flow>(index(size));
  for (int i = 1; i < size; ++i) {
    const int next = (me + i) % size;
    const int prev = (me + size - i) % size;
    sends[index(i - 1)] = {next, writable(op.in.data) + from.offset(next), from.bytes(next)};
    recvs[index(i - 1)] = {prev, static_cast<Bytes>(op.out.data) + to.offset(prev), to.bytes(prev)};
  }
  copy_bytes(static_cast<Bytes>(op.out.data) + to.offset(me),
             writable(op.in.data) + from.offset(me), to.bytes(me));
  exchange(wire, sends.first(index(size - 1)), recvs.first(index(size - 1)));
}

}  // namespace tutti::collectives
