#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/exchange.hpp"

// The segmented ring. Every block travels past all ranks but one; in hop h = 0 .. W-2 rank r sends
// block (r - first - h) mod W to rank r + 1. Blocks are cut into messages; in step t rank r sends
// message t - h of the block of hop h, for every h, and forwards in step t + 1 what came in step
// t. So all links are busy all the time, whatever the sizes of the blocks: each rank sends what it
// has to send and waits only for data that it forwards. Costs about
// max over r of (total - a block) / bandwidth, and W - 2 messages of latency.

namespace tutti::backend::gloo {

class Ring {
 public:
  struct Item {
    std::size_t step;
    std::size_t hop;
    std::size_t block;
    std::size_t message;  ///< Of the block.
  };

  /// `first`: 0 when a rank begins with its own block (all_gather), 1 when a block ends at its own
  /// rank (reduce_scatter). `messages`: of every block.
  Ring(int rank, std::span<const std::size_t> messages, std::size_t first)
      : size_(messages.size()),
        rank_(static_cast<std::size_t>(rank)),
        first_(first),
        messages_(messages) {}

  /// What rank `rank` sends, in order.
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

/// How many messages a rank receives ahead: enough for a pipeline, and for two steps.
inline std::size_t ring_ahead(int size) {
  return std::max<std::size_t>(8, 2 * static_cast<std::size_t>(size - 1));
}

/// Runs this rank's part. post(item, j) receives the j-th message that comes; arrived(item, j): it
/// is here; send(item, j) sends one: of this rank's own when item.hop is 0, else the j-th of those
/// that came. Message j + slots.size() comes into the memory of message j; without slots every
/// message has memory of its own. (There are at least 2 * ring_ahead() slots, uninitialised.)
template <typename Post, typename Send, typename Arrived>
void run_ring(Wire& wire, const Ring& ring, std::span<std::size_t> slots, Post&& post, Send&& send,
              Arrived&& arrived) {
  constexpr std::size_t not_yet = 0;  // Else 1 + how many sends have to be over.
  const auto ahead = ring_ahead(wire.size());
  auto out = ring.outgoing();
  auto in = ring.incoming();
  auto to_post = in;
  auto to_forward = in;
  std::size_t came = 0;
  std::size_t posted = 0;
  std::size_t forwarded = 0;  // Where to_forward stands.
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
    if (!slots.empty() && ring.last_hop(item)) slots[came % slots.size()] = 1;  // Free now.
    in.next();
    ++came;
  }
  wire.wait_sends();
}

}  // namespace tutti::backend::gloo
