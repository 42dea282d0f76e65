#include "collectives/ring.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "collectives/exchange.hpp"
#include "collectives/functions.hpp"
#include "collectives/reducer.hpp"

namespace tutti::collectives {
namespace {

/// The schedule of one rank. In hop h = 0 .. W-2 rank r sends block (r - first - h) mod W to its
/// successor. In step t rank r sends message t - h of the block of hop h, for every h. In step t +
/// 1 it forwards the messages received in step t.
class Ring {
 public:
  struct Item {
    std::size_t step;
    std::size_t hop;
    std::size_t block;
    std::size_t message;  ///< The message's number in its block.
  };

  /// `first`: 0 if a rank begins with its own block (all_gather), 1 if a block ends at its own rank
  /// (reduce_scatter). `messages`: the number of messages of every block.
  Ring(int rank, std::span<const std::size_t> messages, std::size_t first)
      : size_(messages.size()),
        rank_(static_cast<std::size_t>(rank)),
        first_(first),
        messages_(messages) {}

  /// The messages that rank `rank` sends, in order.
  class Stream {
   public:
    Stream(const Ring& ring, std::size_t rank) : ring_(ring), rank_(rank) { settle(); }
    bool more() const { return step_ < ring_.steps(); }
    Item item() const { return {step_, hop_, ring_.block(rank_, hop_), step_ - hop_}; }
    void next() {
      advance();
      settle();
    }

   private:
    void advance() {
      if (++hop_ + 1 < ring_.size_) return;
      hop_ = 0;
      ++step_;
    }
    void settle() {
      while (more() && (step_ < hop_ || step_ - hop_ >= ring_.messages_[ring_.block(rank_, hop_)]))
        advance();
    }

    const Ring& ring_;
    std::size_t rank_;
    std::size_t step_ = 0;
    std::size_t hop_ = 0;
  };

  Stream outgoing() const { return {*this, rank_}; }
  Stream incoming() const { return {*this, (rank_ + size_ - 1) % size_}; }
  bool last_hop(const Item& item) const { return item.hop + 2 == size_; }

 private:
  std::size_t block(std::size_t rank, std::size_t hop) const {
    return (rank + 2 * size_ - first_ - hop) % size_;
  }
  std::size_t steps() const {
    return std::ranges::max(messages_) == 0 ? 0 : std::ranges::max(messages_) + size_ - 2;
  }

  std::size_t size_;
  std::size_t rank_;
  std::size_t first_;
  std::span<const std::size_t> messages_;
};

/// The number of receives posted ahead: enough to keep the pipeline full, and at least the messages
/// of two steps.
std::size_t ring_ahead(int size) {
  return std::max<std::size_t>(8, 2 * static_cast<std::size_t>(size - 1));
}

/// Runs this rank's part. Message j is the j-th that this rank receives. post(item, j) posts its
/// receive; arrived(item, j) is called when the message has arrived. send(item, j) sends a message
/// of this rank's own array if item.hop is 0, otherwise received message j. Messages j and j +
/// slots.size() share memory; without slots every message has separate memory. If there are slots,
/// there are at least twice ring_ahead(), uninitialised.
template <typename Post, typename Send, typename Arrived>
void run_ring(Wire& wire, const Ring& ring, std::span<std::size_t> slots, Post&& post, Send&& send,
              Arrived&& arrived) {
  constexpr std::size_t not_yet = 0;  // Otherwise 1 + the number of sends that must have ended.
  const auto ahead = ring_ahead(wire.size());
  auto out = ring.outgoing();
  auto in = ring.incoming();
  auto to_post = in;
  auto to_forward = in;
  std::size_t came = 0;
  std::size_t posted = 0;
  std::size_t forwarded = 0;  // Position of to_forward.
  std::size_t sent = 0;

  const auto post_more = [&] {
    for (; to_post.more() && posted < came + ahead; to_post.next(), ++posted) {
      if (!slots.empty()) {
        auto& slot = slots[posted % slots.size()];
        if (posted >= slots.size()) {
          if (slot == not_yet) return;
          wire.wait_sends(sent - (slot - 1));
        }
        slot = not_yet;
      }
      post(to_post.item(), posted);
    }
  };
  const auto send_more = [&] {
    for (; out.more(); out.next()) {
      const auto item = out.item();
      if (item.hop == 0) {
        if (in.more() && item.step > in.item().step + ahead) return;
        send(item, std::size_t{0});
        ++sent;
        continue;
      }
      while (forwarded < came && ring.last_hop(to_forward.item())) to_forward.next(), ++forwarded;
      if (forwarded == came) return;
      send(item, forwarded);
      ++sent;
      if (!slots.empty()) slots[forwarded % slots.size()] = sent + 1;
      to_forward.next();
      ++forwarded;
    }
  };

  post_more();
  for (;;) {
    send_more();
    wire.wait_sends(4 * ahead);
    post_more();
    if (!in.more()) break;
    wire.wait_recv();
    const auto item = in.item();
    arrived(item, came);
    if (!slots.empty() && ring.last_hop(item))
      slots[came % slots.size()] = 1;  // The slot is free now.
    in.next();
    ++came;
  }
  wire.wait_sends();
}

std::size_t fold_ring_slots(int size) {
  return 2 * ring_ahead(size);
}
std::size_t fold_ring_memory(int size) {
  const auto slots = fold_ring_slots(size);
  return gather_ring_memory(size) + 64 + slots * sizeof(std::size_t) + 64 +
         (2 * slots + 1) * (message_for(1, slots) + 64);
}

/// Reduces block r into `out` on rank r.
void fold_ring(Wire& wire, Arena& arena, const Reducer& reducer, const Blocks& blocks,
               const void* in, void* out) {
  const int me = wire.rank();
  const int size = wire.size();
  const auto slots = fold_ring_slots(size);
  const auto message = message_for(1, slots);
  const auto messages = arena.take<std::size_t>(index(size));
  for (int r = 0; r < size; ++r) messages[index(r)] = messages_of(blocks.bytes(r), message);
  const auto slot_state = arena.take<std::size_t>(slots);
  auto* const arriving = arena.take(slots * message).data();
  auto* const prepared = arena.take((slots + 1) * message).data();
  std::size_t own = 0;  // Messages of hop 0 that have been prepared and sent.

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
        if (!reducer.scaled()) return wire.send(next, input(item), bytes(item));
        wire.wait_sends(slots - 1);  // Each send in flight needs its own slot.
        auto* room = prepared + own++ % slots * message;
        reducer.prepare(room, input(item), bytes(item));
        wire.send(next, room, bytes(item));
      },
      [&](const Ring::Item& item, std::size_t j) {
        // The last hop of a block ends at the block's own rank.
        auto* to = slot(j);
        if (ring.last_hop(item)) to = static_cast<Bytes>(out) + item.message * message;
        if (reducer.scaled()) {
          auto* room = prepared + slots * message;  // A scratch slot: nothing is sent from it.
          reducer.prepare(room, input(item), bytes(item));
          reducer.combine(to, slot(j), room, bytes(item));
        } else {
          reducer.combine(to, slot(j), input(item), bytes(item));
        }
        if (ring.last_hop(item)) reducer.finish(to, bytes(item));
      });
}

}  // namespace

std::size_t gather_ring_memory(int size) {
  return index(size) * sizeof(std::size_t);
}

void gather_ring(Wire& wire, Arena& arena, const Blocks& blocks, Bytes data) {
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

void all_gather_ring(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  Arena arena(wire, Blocks::memory(size) + gather_ring_memory(size));
  const Blocks blocks(arena, op.rows, size, op.out.row_bytes());
  auto* out = static_cast<Bytes>(op.out.data);
  copy_bytes(out + blocks.offset(me), op.in.data, blocks.bytes(me));
  gather_ring(wire, arena, blocks, out);
}

void reduce_scatter_ring(Wire& wire, const Op& op) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, Blocks::memory(size) + fold_ring_memory(size));
  const Blocks blocks(arena, op.rows, size, op.in.row_bytes());
  fold_ring(wire, arena, reducer, blocks, op.in.data, op.out.data);
}

void all_reduce_ring(Wire& wire, const Op& op) {
  const int size = wire.size();
  const Reducer reducer(op, size);
  Arena arena(wire, Blocks::memory(size) + gather_ring_memory(size) + fold_ring_memory(size));
  const Blocks blocks(arena, op.in.bytes(), size);
  auto* out = static_cast<Bytes>(op.out.data);
  fold_ring(wire, arena, reducer, blocks, op.in.data, out + blocks.offset(wire.rank()));
  gather_ring(wire, arena, blocks, out);
}

}  // namespace tutti::collectives
