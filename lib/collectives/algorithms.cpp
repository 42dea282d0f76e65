#include "collectives/algorithms.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "collectives/exchange.hpp"
#include "collectives/ring.hpp"
#include "kernels/reduce.hpp"
#include "values/fail.hpp"

// All ranks compute the same bits: either one rank reduces an element and the others get its
// result, or all of them combine the same numbers in the same way.

namespace tutti::backend::gloo {
namespace {

using Bytes = std::byte*;

/// Hands out the call's scratch memory.
class Arena {
 public:
  Arena(Wire& wire, std::size_t bytes) : at_(wire.scratch(bytes + slack)) {}
  /// Uninitialised.
  template <typename T = std::byte>
  std::span<T> take(std::size_t n) {
    auto* from = at_;
    at_ += (n * sizeof(T) + 63) / 64 * 64;
    return {reinterpret_cast<T*>(from), n};
  }
  static constexpr std::size_t slack = 64 * 16;  // For the rounding of up to 16 pieces.

 private:
  std::byte* at_;
};

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

Bytes writable(const void* data) {
  return const_cast<Bytes>(static_cast<const std::byte*>(data));  // A flow to send is only read.
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

/// Where each rank's block lies in an array, in bytes.
class Blocks {
 public:
  static std::size_t memory(int size) { return (index(size) + 1) * sizeof(std::size_t) + 64; }

  Blocks(Arena& arena, const Rows& rows, int size, std::size_t row_bytes)
      : offsets_(arena.take<std::size_t>(index(size) + 1)) {
    std::size_t offset = 0;
    for (int r = 0; r < size; ++r) {
      offsets_[index(r)] = offset;
      offset += static_cast<std::size_t>(rows[r]) * row_bytes;
    }
    offsets_[index(size)] = offset;
  }
  /// An array shared out in equal parts, cut at cache lines.
  Blocks(Arena& arena, std::size_t bytes, int size)
      : offsets_(arena.take<std::size_t>(index(size) + 1)) {
    const auto lines = (bytes + 63) / 64;
    const auto w = index(size);
    for (std::size_t r = 0; r <= w; ++r)
      offsets_[r] = std::min(bytes, (lines / w * r + std::min(r, lines % w)) * 64);
  }
  std::size_t offset(int r) const { return offsets_[index(r)]; }
  std::size_t bytes(int r) const { return offsets_[index(r) + 1] - offsets_[index(r)]; }
  std::size_t bytes(std::size_t r) const { return offsets_[r + 1] - offsets_[r]; }
  std::size_t offset(std::size_t r) const { return offsets_[r]; }

 private:
  std::span<std::size_t> offsets_;
};

/// The arithmetic of one call.
class Reducer {
 public:
  Reducer(const Op& op, int size)
      : dtype_(op.in.dtype),
        kind_(op.reduce.kind),
        scale_(op.reduce.scale),
        size_(index(size)),
        element_(size_of(op.in.dtype)),
        fn_(internal::reduce_fn(dtype_, sums() ? ReduceOp::Kind::sum : kind_)) {}

  std::size_t element() const { return element_; }
  bool scaled() const { return kind_ == ReduceOp::Kind::premul_sum; }
  /// What this rank puts in is not what stands in its array.
  bool prepares() const { return scaled(); }
  /// This rank's contribution; booleans become 0 or 1.
  void prepare(void* out, const void* in, std::size_t bytes) const {
    if (!scaled() && dtype_ != DType::boolean) return copy_bytes(out, in, bytes);
    const void* inputs[] = {in};
    fold(out, inputs, {&scale_, 1}, bytes);
  }
  void combine(void* out, const void* a, const void* b, std::size_t bytes) const {
    fn_(out, a, b, bytes / element_);
  }
  void finish(void* data, std::size_t bytes) const {
    if (kind_ == ReduceOp::Kind::avg) internal::divide(dtype_, data, bytes / element_, size_);
  }
  /// The left fold, rounded once. `scales`: of every input, when scaled.
  void fold(void* out, std::span<const void* const> inputs, std::span<const double> scales,
            std::size_t bytes) const {
    internal::fold(dtype_, kind_, out, inputs, scaled() ? scales : std::span<const double>(),
                   bytes / element_);
  }
  void identity(void* out, std::size_t bytes) const {
    internal::fill_identity(dtype_, kind_, out, bytes / element_);
  }
  double scale() const { return scale_; }

 private:
  bool sums() const { return kind_ == ReduceOp::Kind::avg || scaled(); }

  DType dtype_;
  ReduceOp::Kind kind_;
  double scale_;
  std::size_t size_;
  std::size_t element_;
  internal::ReduceFn fn_;
};

/// Messages of a reduction that holds `slots` of them per peer: less each when there are many.
std::size_t message_for(int size, std::size_t slots) {
  constexpr std::size_t budget = std::size_t{16} << 20;
  const auto each = budget / (slots * index(size));
  return std::clamp<std::size_t>(std::bit_floor(each), std::size_t{16} << 10, segment);
}

// Data that only moves.

void gather_direct(Wire& wire, const Op& op, bool everybody) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire, Blocks::memory(size) + 2 * index(size) * sizeof(Flow));
  const bool receives = everybody || me == op.root;
  const auto row_bytes = receives ? op.out.row_bytes() : 0;
  const Blocks blocks(arena, op.rows, size, row_bytes);
  const auto sends = arena.take<Flow>(index(size));
  const auto recvs = arena.take<Flow>(index(size));
  std::size_t to = 0;
  std::size_t from = 0;
  for (int i = 1; i < size; ++i) {
    const int next = (me + i) % size;
    const int prev = (me + size - i) % size;
    if (everybody || next == op.root) sends[to++] = {next, writable(op.in.data), op.in.bytes()};
    if (receives)
      recvs[from++] = {prev, static_cast<Bytes>(op.out.data) + blocks.offset(prev),
                       blocks.bytes(prev)};
  }
  if (receives)
    copy_bytes(static_cast<Bytes>(op.out.data) + blocks.offset(me), op.in.data, op.in.bytes());
  exchange(wire, sends.first(to), recvs.first(from));
}

/// Every message carries what its sender has for it, which may be nothing.
void all_gather_bounded(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto bound = op.out.bytes() / index(size);
  auto* out = static_cast<Bytes>(op.out.data);
  const auto* in = writable(op.in.data);
  copy_bytes(out + index(me) * bound, in, op.in.bytes());
  for (std::size_t from = 0; from < bound; from += max_message) {
    const auto most = std::min(max_message, bound - from);
    const auto mine = std::min(most, op.in.bytes() - std::min(from, op.in.bytes()));
    for (int i = 1; i < size; ++i) {
      const int prev = (me + size - i) % size;
      wire.recv(prev, out + index(prev) * bound + from, most);
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

void all_to_all_direct(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire, 2 * Blocks::memory(size) + 2 * index(size) * sizeof(Flow));
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

/// Every rank's block of `data` is on that rank; afterwards all are on all.
void all_gather_ring(Wire& wire, Arena& arena, const Blocks& blocks, Bytes data) {
  const int size = wire.size();
  const auto messages = arena.take<std::size_t>(index(size));
  for (int r = 0; r < size; ++r) messages[index(r)] = messages_of(blocks.bytes(r), segment);
  const Ring ring(wire.rank(), messages, 0);
  const auto part = [&](const Ring::Item& item) {
    const auto from = item.message * segment;
    return std::span(data + blocks.offset(item.block) + from,
                     std::min(segment, blocks.bytes(item.block) - from));
  };
  const int next = (wire.rank() + 1) % size;
  const int prev = (wire.rank() + size - 1) % size;
  run_ring(
      wire, ring, {},
      [&](const Ring::Item& item, std::size_t) {
        wire.recv(prev, part(item).data(), part(item).size());
      },
      [&](const Ring::Item& item, std::size_t) {
        wire.send(next, part(item).data(), part(item).size());
      },
      [](const Ring::Item&, std::size_t) {});
}

std::size_t ring_memory(int size) {
  return index(size) * sizeof(std::size_t);
}

void all_gather_ring(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire, Blocks::memory(size) + ring_memory(size));
  const Blocks blocks(arena, op.rows, size, op.out.row_bytes());
  auto* out = static_cast<Bytes>(op.out.data);
  copy_bytes(out + blocks.offset(me), op.in.data, blocks.bytes(me));
  all_gather_ring(wire, arena, blocks, out);
}

void broadcast_tree(Wire& wire, const Op& op) {
  const int size = wire.size();
  const int me = (wire.rank() + size - op.root) % size;  // The root is 0.
  const auto real = [&](int r) { return (r + op.root) % size; };
  auto* data = static_cast<Bytes>(op.out.data);
  const auto bytes = op.out.bytes();
  if (me == 0) copy_bytes(data, op.in.data, bytes);
  int bit = 1;
  for (; bit < size; bit *= 2)
    if ((me & bit) != 0) {
      const Flow recv{real(me - bit), data, bytes};
      exchange(wire, {}, {&recv, 1});
      break;
    }
  std::array<Flow, 32> children;
  std::size_t n = 0;
  for (bit /= 2; bit > 0; bit /= 2)
    if (me + bit < size) children[n++] = {real(me + bit), data, bytes};
  exchange(wire, std::span(children).first(n), {});
}

void broadcast_chain(Wire& wire, const Op& op) {
  const int size = wire.size();
  const int place = (wire.rank() + size - op.root) % size;
  auto* data = static_cast<Bytes>(op.out.data);
  if (place == 0) copy_bytes(data, op.in.data, op.out.bytes());
  // With two ranks nobody forwards.
  const auto message = size == 2 ? message_of(op.out.bytes()) : segment;
  chain(
      wire, place == 0 ? -1 : (wire.rank() + size - 1) % size,
      place == size - 1 ? -1 : (wire.rank() + 1) % size, op.out.bytes(), message, 16,
      [&](std::size_t k) { return data + k * message; }, [](std::size_t) {});
}

void barrier(Wire& wire) {
  const int size = wire.size();
  for (int step = 1; step < size; step *= 2) {
    std::byte nothing{};  // A message without bytes: one system call less where it arrives.
    wire.recv((wire.rank() + size - step) % size, &nothing, 0);
    wire.send((wire.rank() + step) % size, &nothing, 0);
    wire.wait_sends();  // First, because it comes first: measured, docs/gloo-benchmarks.md.
    wire.wait_recv();
  }
}

// Reductions.

/// Receives the same part of several ranks' arrays and folds it with this rank's in rank order.
/// sends: what the others need of this rank's array, at the same time.
struct DirectFold {
  int first = 0;  ///< The ranks whose arrays are folded are first .. last.
  int last = 0;
  const void* mine = nullptr;  ///< This rank's part; its rank is among them.
  void* out = nullptr;
  std::size_t bytes = 0;  ///< 0: this rank folds nothing.
};

constexpr std::size_t fold_slots = 4;

std::size_t fold_memory(int size, std::size_t bytes) {
  const auto message = message_for(size, fold_slots);
  const auto per_peer = std::min(fold_slots * message, std::max<std::size_t>(bytes, 1));
  return index(size) * (per_peer + 64 + 2 * sizeof(Flow) + sizeof(void*) + sizeof(double)) + 64;
}

void fold_direct(Wire& wire, Arena& arena, const Reducer& reducer, std::span<const Flow> sends,
                 const DirectFold& f) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto message = message_for(size, fold_slots);
  const auto ranks = index(f.last - f.first + 1);
  const auto recvs = arena.take<Flow>(index(size));
  const auto inputs = arena.take<const void*>(index(size));
  const auto scales = arena.take<double>(index(size));
  if (reducer.scaled()) {  // Everybody takes part, also those that fold nothing.
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

void all_reduce_direct(Wire& wire, const Op& op) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, fold_memory(size, op.in.bytes()) + index(size) * sizeof(Flow));
  const auto sends = arena.take<Flow>(index(size - 1));
  for (int i = 1; i < size; ++i)
    sends[index(i - 1)] = {(wire.rank() + i) % size, writable(op.in.data), op.in.bytes()};
  fold_direct(wire, arena, reducer, sends, {0, size - 1, op.in.data, op.out.data, op.in.bytes()});
}

/// Messages of half an array between two ranks: a few, so that folding one hides the next.
std::size_t pair_message(std::size_t half) {
  return std::clamp(std::bit_ceil(half / 2), 2 * segment, std::size_t{1} << 20);
}

std::size_t pair_memory(std::size_t half) {
  return fold_slots * std::min(pair_message(half), half) + 64;
}

/// Two ranks: each folds half of the array and sends every message of it on at once, between the
/// messages of the half that its peer folds.
void all_reduce_pair(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int peer = 1 - me;
  const Reducer reducer(op, 2);
  const auto half = (op.in.bytes() + 1) / 2 + 64;
  Arena arena(wire, Blocks::memory(2) + pair_memory(half) + 2 * sizeof(double) + 64);
  const Blocks blocks(arena, op.in.bytes(), 2);
  const auto message = pair_message(blocks.bytes(0));
  auto* const slots = arena.take(fold_slots * std::min(message, half)).data();
  const auto scales = arena.take<double>(2);  // Not on the stack: a message outlives an error here.
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
  const auto slot = [&](std::size_t k) { return slots + k % fold_slots * message; };
  const auto post = [&](std::size_t k) {
    if (const auto [at, n] = piece_of(me, k); n != 0) wire.recv(peer, slot(k), n);
    if (const auto [at, n] = piece_of(peer, k); n != 0)
      wire.send(peer, writable(op.in.data) + at, n);
  };
  const auto count = messages_of(blocks.bytes(0), message);  // The first half is not smaller.
  for (std::size_t k = 0; k < std::min(fold_slots, count); ++k) post(k);
  // What is received, in the order in which it was posted: fold_slots messages to fold, and then by
  // turns one that is folded already and one to fold.
  const auto result = [&](std::size_t k) {
    if (const auto [at, n] = piece_of(peer, k); n != 0) wire.wait_recv();
  };
  for (std::size_t k = 0; k < count; ++k) {
    if (k >= fold_slots) result(k - fold_slots);
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
    if (k + fold_slots < count) post(k + fold_slots);
  }
  for (std::size_t k = count - std::min(fold_slots, count); k < count; ++k) result(k);
  wire.wait_sends();
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

void scan_direct(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const bool exclusive = op.kind == Operation::exclusive_scan;
  const Reducer reducer(op, size);
  const auto bytes = op.in.bytes();
  // A rank's own array is no input of an exclusive scan; what is folded has to have one, so the
  // result is made beside it.
  Arena arena(wire, fold_memory(size, bytes) + index(size) * sizeof(Flow));
  const auto sends = arena.take<Flow>(index(size));
  std::size_t to = 0;
  for (int r = me + 1; r < size; ++r) sends[to++] = {r, writable(op.in.data), bytes};
  const int last = exclusive ? me - 1 : me;
  fold_direct(wire, arena, reducer, sends.first(to),
              {0, std::max(last, 0), op.in.data, op.out.data, last < 0 ? 0 : bytes});
  if (last < 0) reducer.identity(op.out.data, bytes);
}

/// Rank r gets the fold of everybody's block r, into out.
void reduce_scatter_direct(Wire& wire, Arena& arena, const Reducer& reducer, const Blocks& blocks,
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

std::size_t reduce_ring_slots(int size) {
  return 2 * ring_ahead(size);
}
std::size_t reduce_ring_memory(int size) {
  const auto slots = reduce_ring_slots(size);
  return ring_memory(size) + 64 + slots * sizeof(std::size_t) + 64 +
         2 * slots * (message_for(1, slots) + 64);
}

void reduce_scatter_ring(Wire& wire, Arena& arena, const Reducer& reducer, const Blocks& blocks,
                         const void* in, void* out) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto slots = reduce_ring_slots(size);
  const auto message = message_for(1, slots);
  const auto messages = arena.take<std::size_t>(index(size));
  for (int r = 0; r < size; ++r) messages[index(r)] = messages_of(blocks.bytes(r), message);
  const auto slot_state = arena.take<std::size_t>(slots);
  auto* const arriving = arena.take(slots * message).data();
  auto* const prepared = arena.take(slots * message).data();
  std::size_t own = 0;  // Messages of its own that this rank has sent.

  const Ring ring(me, messages, 1);
  const int next = (me + 1) % size;
  const int prev = (me + size - 1) % size;
  const auto bytes = [&](const Ring::Item& item) {
    return std::min(message, blocks.bytes(item.block) - item.message * message);
  };
  const auto input = [&](const Ring::Item& item) {
    return writable(in) + blocks.offset(item.block) + item.message * message;
  };
  const auto slot = [&](std::size_t j) { return arriving + j % slots * message; };
  run_ring(
      wire, ring, slot_state,
      [&](const Ring::Item& item, std::size_t j) { wire.recv(prev, slot(j), bytes(item)); },
      [&](const Ring::Item& item, std::size_t j) {
        if (item.hop != 0) return wire.send(next, slot(j), bytes(item));
        if (!reducer.prepares()) return wire.send(next, input(item), bytes(item));
        wire.wait_sends(slots - 1);  // No more are under way than there is room for.
        auto* room = prepared + own++ % slots * message;
        reducer.prepare(room, input(item), bytes(item));
        wire.send(next, room, bytes(item));
      },
      [&](const Ring::Item& item, std::size_t j) {
        // item.block is named after the sender; the last hop ends at the block's own rank.
        auto* to = slot(j);
        if (ring.last_hop(item)) to = static_cast<Bytes>(out) + item.message * message;
        if (reducer.prepares()) {
          auto* room = prepared + slots * message;  // Never sent from.
          reducer.prepare(room, input(item), bytes(item));
          reducer.combine(to, slot(j), room, bytes(item));
        } else {
          reducer.combine(to, slot(j), input(item), bytes(item));
        }
        if (ring.last_hop(item)) reducer.finish(to, bytes(item));
      });
}

void reduce_scatter(Wire& wire, const Op& op, Algorithm algorithm) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  if (algorithm == Algorithm::ring) {
    Arena arena(wire, Blocks::memory(size) + reduce_ring_memory(size) + segment);
    const Blocks blocks(arena, op.rows, size, op.in.row_bytes());
    return reduce_scatter_ring(wire, arena, reducer, blocks, op.in.data, op.out.data);
  }
  Arena arena(
      wire, Blocks::memory(size) + fold_memory(size, op.out.bytes()) + index(size) * sizeof(Flow));
  const Blocks blocks(arena, op.rows, size, op.in.row_bytes());
  reduce_scatter_direct(wire, arena, reducer, blocks, op.in.data, op.out.data);
}

/// reduce_scatter into the own slice of `out`, then all_gather.
void all_reduce_in_slices(Wire& wire, const Op& op, Algorithm algorithm) {
  const int me = wire.rank();
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, Blocks::memory(size) + ring_memory(size) + segment +
                        std::max(reduce_ring_memory(size),
                                 fold_memory(size, op.in.bytes() / index(size) + 128) +
                                     index(size) * sizeof(Flow)));
  const Blocks blocks(arena, op.in.bytes(), size);
  auto* out = static_cast<Bytes>(op.out.data);
  if (algorithm == Algorithm::ring)
    reduce_scatter_ring(wire, arena, reducer, blocks, op.in.data, out + blocks.offset(me));
  else
    reduce_scatter_direct(wire, arena, reducer, blocks, op.in.data, out + blocks.offset(me));
  if (size > 2) return all_gather_ring(wire, arena, blocks, out);
  const int peer = 1 - me;  // Nobody forwards.
  const Flow send{peer, out + blocks.offset(me), blocks.bytes(me)};
  const Flow recv{peer, out + blocks.offset(peer), blocks.bytes(peer)};
  exchange(wire, {&send, 1}, {&recv, 1});
}

void reduce_in_slices(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const Reducer reducer(op, size);
  const auto slice = op.in.bytes() / index(size) + 128;
  Arena arena(wire, Blocks::memory(size) + fold_memory(size, slice) + slice +
                        2 * index(size) * sizeof(Flow));
  const Blocks blocks(arena, op.in.bytes(), size);
  const bool root = me == op.root;
  auto* out = static_cast<Bytes>(op.out.data);
  auto* mine = root ? out + blocks.offset(me) : arena.take(slice).data();
  reduce_scatter_direct(wire, arena, reducer, blocks, op.in.data, mine);
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

/// Rank after rank adds its own: to the root for reduce, to the last rank for a scan, where every
/// rank keeps what has come so far.
void reduce_chain(Wire& wire, const Op& op) {
  constexpr std::size_t slots = 16;
  const int size = wire.size();
  const bool scan = op.kind != Operation::reduce;
  const bool exclusive = op.kind == Operation::exclusive_scan;
  const int place = scan ? wire.rank() : (wire.rank() + size - op.root - 1) % size;
  const bool first = place == 0;
  const bool last = place == size - 1;
  const Reducer reducer(op, size);
  const auto bytes = op.in.bytes();
  Arena arena(wire, (2 * slots + 1) * segment);
  auto* const room = arena.take(slots * segment).data();
  auto* const sum = arena.take(slots * segment).data();
  auto* const prepared = arena.take(segment).data();
  auto* out = static_cast<Bytes>(op.out.data);
  const auto slot = [&](Bytes base, std::size_t k) { return base + k % slots * segment; };
  const auto size_of_piece = [&](std::size_t k) { return std::min(segment, bytes - k * segment); };

  // What goes on is not what came, so the two have memory of their own.
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
    } else if (reducer.prepares()) {
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

/// log2 W steps. The ranks beyond the largest power of two hand theirs to a partner first and get
/// the result from it last. Operands are in rank order, so both sides compute the same bits.
void all_reduce_doubling(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const Reducer reducer(op, size);
  const auto bytes = op.in.bytes();
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  const int extra = size - half;
  Arena arena(wire, 2 * bytes);
  auto* const sum = arena.take(bytes).data();
  auto* const theirs = arena.take(bytes).data();
  reducer.prepare(sum, op.in.data, bytes);

  // Of the first 2 * extra ranks the odd ones step aside: partners are neighbours.
  const bool aside = me < 2 * extra && me % 2 == 1;
  const bool helps = me < 2 * extra && me % 2 == 0;
  if (aside) {
    const Flow send{me - 1, sum, bytes};
    exchange(wire, {&send, 1}, {});
  } else if (helps) {
    const Flow recv{me + 1, theirs, bytes};
    exchange(wire, {}, {&recv, 1});
    reducer.combine(sum, sum, theirs, bytes);
  }
  if (!aside) {
    const int place = helps ? me / 2 : me - extra;
    const auto real = [&](int p) { return p < extra ? 2 * p : p + extra; };
    for (int bit = 1; bit < half; bit *= 2) {
      const int partner = place ^ bit;
      const Flow send{real(partner), sum, bytes};
      const Flow recv{real(partner), theirs, bytes};
      exchange(wire, {&send, 1}, {&recv, 1});
      if (partner < place)
        reducer.combine(sum, theirs, sum, bytes);
      else
        reducer.combine(sum, sum, theirs, bytes);
    }
    reducer.finish(sum, bytes);
  }
  if (helps) {
    const Flow send{me + 1, sum, bytes};
    exchange(wire, {&send, 1}, {});
  } else if (aside) {
    const Flow recv{me - 1, sum, bytes};
    exchange(wire, {}, {&recv, 1});
  }
  copy_bytes(op.out.data, sum, bytes);
}

/// One rank: no wire, the same arithmetic.
void alone(const Op& op) {
  const auto bytes = op.in.bytes();
  const Reducer reducer(op, 1);
  switch (op.kind) {
    case Operation::barrier:
      return;
    case Operation::exclusive_scan:
      return reducer.identity(op.out.data, bytes);
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
    case Operation::scan: {
      const void* inputs[] = {op.in.data};
      const double scales[] = {op.reduce.scale};
      return reducer.fold(op.out.data, inputs, scales, bytes);
    }
    default:
      return copy_bytes(op.out.data, op.in.data, bytes);
  }
}

}  // namespace

void run_collective(Wire& wire, const Op& op, Algorithm algorithm) {
  if (wire.size() == 1) return alone(op);
  switch (op.kind) {
    case Operation::barrier:
      return barrier(wire);
    case Operation::broadcast:
      return algorithm == Algorithm::tree ? broadcast_tree(wire, op) : broadcast_chain(wire, op);
    case Operation::all_gather:
      return algorithm == Algorithm::ring ? all_gather_ring(wire, op)
                                          : gather_direct(wire, op, true);
    case Operation::all_gather_bounded:
      return all_gather_bounded(wire, op);
    case Operation::gather:
      return gather_direct(wire, op, false);
    case Operation::scatter:
      return scatter_direct(wire, op);
    case Operation::all_to_all:
      return all_to_all_direct(wire, op);
    case Operation::reduce_scatter:
      return reduce_scatter(wire, op, algorithm);
    case Operation::all_reduce:
      if (algorithm == Algorithm::direct) return all_reduce_direct(wire, op);
      if (algorithm == Algorithm::doubling) return all_reduce_doubling(wire, op);
      if (algorithm == Algorithm::slices && wire.size() == 2) return all_reduce_pair(wire, op);
      return all_reduce_in_slices(wire, op, algorithm);
    case Operation::reduce:
      if (algorithm == Algorithm::direct) return reduce_direct(wire, op);
      if (algorithm == Algorithm::slices) return reduce_in_slices(wire, op);
      return reduce_chain(wire, op);
    case Operation::scan:
    case Operation::exclusive_scan:
      return algorithm == Algorithm::direct ? scan_direct(wire, op) : reduce_chain(wire, op);
    case Operation::send:
    case Operation::recv:
      break;
  }
  internal::failf(Errc::backend, "gloo: {} is no collective", tutti::name_of(op.kind));
}

}  // namespace tutti::backend::gloo
