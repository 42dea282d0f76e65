#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "collectives/wire.hpp"

// Moves blocks in messages. Everything here keeps a bounded number of messages posted, and posts
// in the same order on both sides, so that it cannot wait for itself: by induction over the
// messages, what a rank waits for was posted by its peer before that peer waits for anything
// later.

namespace tutti::backend::gloo {

/// A block on its way to or from one peer.
struct Flow {
  int peer = 0;
  std::byte* data = nullptr;  ///< Only read when it is sent.
  std::size_t bytes = 0;
  /// The block never exists as a whole: message k lies in slot k % slots behind `data`.
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

/// Messages of a block that nobody forwards: a few, so that both ends work at the same time, and no
/// more, because each has its price.
constexpr std::size_t message_of(std::size_t bytes) {
  return std::clamp(std::bit_ceil(bytes / 4), segment, max_message);
}

/// All flows at once, `ahead` messages of each. Calls ready(k) when message k of every flow that
/// has one is here or has been sent, in the order of k. `message`: of every flow; 0: each has the
/// size that suits it.
template <typename Ready>
void exchange(Wire& wire, std::span<const Flow> sends, std::span<const Flow> recvs,
              std::size_t message, std::size_t ahead, Ready&& ready) {
  const auto of = [&](const Flow& flow) { return message != 0 ? message : message_of(flow.bytes); };
  std::size_t rounds = 0;
  for (const auto& flow : sends) rounds = std::max(rounds, messages_of(flow.bytes, of(flow)));
  for (const auto& flow : recvs) rounds = std::max(rounds, messages_of(flow.bytes, of(flow)));
  const auto has = [&](const Flow& flow, std::size_t k) { return k * of(flow) < flow.bytes; };
  const auto post = [&](std::size_t k) {
    for (const auto& flow : recvs)
      if (has(flow, k)) {
        const auto p = piece(flow, k, of(flow));
        wire.recv(flow.peer, p.data, p.bytes);
      }
    for (const auto& flow : sends)
      if (has(flow, k)) {
        const auto p = piece(flow, k, of(flow));
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
    wire.wait_sends(later);  // In place, ready() overwrites what was sent.
    ready(k);
    if (k + ahead >= rounds) continue;
    post(k + ahead);
    later += sends_in(k + ahead);
  }
}

inline void exchange(Wire& wire, std::span<const Flow> sends, std::span<const Flow> recvs) {
  exchange(wire, sends, recvs, 0, 4, [](std::size_t) {});
}

/// A long row of messages past this rank: received from `prev` (-1: it begins here), made ready,
/// sent on to `next` (-1: it ends here). where(k) is message k's memory; it may be used again for
/// message k + slots.
template <typename Where, typename Ready>
void chain(Wire& wire, int prev, int next, std::size_t bytes, std::size_t message,
           std::size_t slots, Where&& where, Ready&& ready) {
  const auto count = messages_of(bytes, message);
  const auto ahead = std::max<std::size_t>(1, slots / 2);
  const auto size = [&](std::size_t k) { return std::min(message, bytes - k * message); };
  std::size_t posted = 0;
  const auto post_up_to = [&](std::size_t end) {
    for (; prev >= 0 && posted < std::min(end, count); ++posted)
      wire.recv(prev, where(posted), size(posted));
  };
  post_up_to(ahead);
  for (std::size_t k = 0; k < count; ++k) {
    if (prev >= 0) wire.wait_recv();
    ready(k);
    if (next >= 0) wire.send(next, where(k), size(k));
    // The memory of message k + 1 + ahead was that of message k + 1 + ahead - slots.
    wire.wait_sends(slots - ahead - 1);
    post_up_to(k + 1 + ahead);
  }
  wire.wait_sends();
}

}  // namespace tutti::backend::gloo
