#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "collectives/wire.hpp"

// Moves blocks in messages. A bounded number of messages is posted at a time, in the same order on
// both sides. Ranks cannot deadlock, because a peer posts each message before it waits for a later
// one (induction over the messages).

namespace tutti::collectives {

/// A block that is sent to or received from one peer.
struct Flow {
  int peer = 0;
  std::byte* data = nullptr;  ///< Not written when the block is sent.
  std::size_t bytes = 0;
  /// 0: the block is complete in memory. Otherwise message k is in slot k % slots of `data`.
  std::size_t slots = 0;
};

constexpr std::size_t messages_of(std::size_t bytes, std::size_t message) {
  return (bytes + message - 1) / message;
}

struct Piece {
  std::byte* data;
  std::size_t bytes;
};
constexpr Piece piece(const Flow& flow, std::size_t k, std::size_t message) {
  const auto from = k * message;
  return {flow.data + (flow.slots == 0 ? from : k % flow.slots * message),
          std::min(message, flow.bytes - from)};
}

/// Message size of a reduction that holds `slots` messages per peer: smaller with many peers, to
/// bound the memory.
constexpr std::size_t message_for(int size, std::size_t slots) {
  constexpr std::size_t budget = std::size_t{16} << 20;
  const auto each = budget / (slots * static_cast<std::size_t>(size));
  return std::clamp<std::size_t>(std::bit_floor(each), std::size_t{16} << 10, segment);
}

/// Moves all flows at once, with `ahead` messages of each in flight. Calls ready(k), in the order
/// of k, when message k of every flow has arrived or has been sent. `message`: the message size.
template <typename Ready>
void exchange(Wire& wire, std::span<const Flow> sends, std::span<const Flow> recvs,
              std::size_t message, std::size_t ahead, Ready&& ready) {
  std::size_t rounds = 0;
  for (const auto& flow : sends) rounds = std::max(rounds, messages_of(flow.bytes, message));
  for (const auto& flow : recvs) rounds = std::max(rounds, messages_of(flow.bytes, message));
  const auto has = [&](const Flow& flow, std::size_t k) { return k * message < flow.bytes; };
  const auto post = [&](std::size_t k) {
    for (const auto& flow : recvs)
      if (has(flow, k)) {
        const auto p = piece(flow, k, message);
        wire.recv(flow.peer, p.data, p.bytes);
      }
    for (const auto& flow : sends)
      if (has(flow, k)) {
        const auto p = piece(flow, k, message);
        wire.send(flow.peer, p.data, p.bytes);
      }
  };
  const auto sends_in = [&](std::size_t k) {
    return static_cast<std::size_t>(
        std::ranges::count_if(sends, [&](const Flow& flow) { return has(flow, k); }));
  };
  std::size_t later = 0;  // Sends posted for the rounds after k.
  for (std::size_t k = 0; k < std::min(ahead, rounds); ++k) {
    post(k);
    later += sends_in(k);
  }
  for (std::size_t k = 0; k < rounds; ++k) {
    for (const auto& flow : recvs)
      if (has(flow, k)) wire.wait_recv();
    later -= sends_in(k);
    wire.wait_sends(later);  // ready() overwrites the sent data if they share memory.
    ready(k);
    if (k + ahead >= rounds) continue;
    post(k + ahead);
    later += sends_in(k + ahead);
  }
}

/// Moves blocks that are not forwarded. Smaller messages would only add fixed costs, because the
/// transport itself overlaps the work of both ends.
inline void exchange(Wire& wire, std::span<const Flow> sends, std::span<const Flow> recvs) {
  exchange(wire, sends, recvs, max_message, 4, [](std::size_t) {});
}

}  // namespace tutti::collectives
