// Receiving: frames, and the messages that they are parts of.

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "links.hpp"

namespace tutti::backend::tcp {
namespace {

/// Messages without a receive that are kept, of all peers.
constexpr std::uint64_t most_early_bytes = std::uint64_t{1} << 30;

}  // namespace

void Links::recv(Request& request, int from, std::uint64_t slot, void* data, std::size_t bytes) {
  Lock lock(*this);
  auto& peer = peers_[static_cast<std::size_t>(from)];
  begin(request, from, false);
  await(peer, 1);
  request.slot = slot;
  request.data = static_cast<std::byte*>(data);
  request.bytes = bytes;
  request.next = nullptr;
  if (is_closing() || fault_) return end(request, true);
  try {
    if (!peer.incoming.empty() && take_early(peer, request)) return;
  } catch (const std::bad_alloc&) {
    end(request, true);
    throw;
  }
  (peer.last == nullptr ? peer.first : peer.last->next) = &request;
  peer.last = &request;
}

/// Gives a new receive the oldest message that waits for it.
bool Links::take_early(Peer& peer, Request& request) {
  const auto found = std::ranges::find_if(peer.incoming, [&](const Incoming& m) {
    return m.request == nullptr && !m.forgotten && m.slot == request.slot;
  });
  if (found == peer.incoming.end()) return false;
  if (found->announced) {
    send_own(peer, {.kind = Frame::Kind::go, .number = found->number});
    found->announced = false;
    found->request = &request;
    return true;
  }
  found->request = &request;
  if (found->early != nullptr && std::min<std::size_t>(request.bytes, found->bytes) > 0)
    // All of it, because parts arrive in any order.
    std::memcpy(request.data, found->early.get(),
                std::min<std::size_t>(request.bytes, found->bytes));
  drop(*found);
  if (found->got == found->bytes) end_message(peer, *found);
  return true;
}

Links::Request* Links::take_posted(Peer& peer, std::uint64_t slot) noexcept {
  Request* before = nullptr;
  for (auto* r = peer.first; r != nullptr; before = std::exchange(r, r->next)) {
    if (r->slot != slot) continue;
    (before == nullptr ? peer.first : before->next) = r->next;
    if (peer.last == r) peer.last = before;
    return r;
  }
  return nullptr;
}

/// Frees the memory of a message without a receive.
void Links::drop(Incoming& message) noexcept {
  if (message.early != nullptr) early_bytes_ -= message.bytes;
  message.early.reset();
}

/// Makes room for a message without a receive.
void Links::keep(Peer& peer, Incoming& message) {
  if (message.bytes > most_early_bytes - early_bytes_) {
    message.forgotten = true;
    return fail(peer, Errc::resource_exhausted,
                "more than 1 GiB of messages has arrived for which no receive has been posted");
  }
  message.early = std::make_unique_for_overwrite<std::byte[]>(message.bytes);
  early_bytes_ += message.bytes;
}

/// All of a message has arrived.
void Links::end_message(Peer& peer, Incoming& message) noexcept {
  if (auto* const request = std::exchange(message.request, nullptr)) {
    request->received = message.bytes;
    end(*request, false);
  } else if (!message.forgotten) {
    return;  // It waits for its receive.
  }
  drop(message);
  std::erase_if(peer.incoming, [&](const Incoming& m) { return &m == &message; });
}

/// Finds the message of the next data frame. It waits if the message of another connection comes
/// first, or if no call needs the memory that it would take.
Links::Step Links::begin_message(Peer& peer, Connection& c) {
  const auto& f = c.frame;
  const auto ahead = static_cast<std::int32_t>(f.number - peer.begun);
  if (ahead > 0) return Step::waits;
  const auto bytes = f.end - f.begin;
  const bool announced = f.kind == Frame::Kind::announce;
  if (ahead < 0) {
    const auto found = std::ranges::find_if(
        peer.incoming, [&](const Incoming& m) { return m.number == f.number; });
    if (found == peer.incoming.end() || found->slot != f.slot || found->bytes != f.bytes ||
        found->announced || announced || bytes > f.bytes - found->promised) {
      accuse(peer, "a part of no message");
      return Step::waits;
    }
    found->promised += bytes;
    c.into = &*found;
    return Step::done;
  }
  auto* const request = take_posted(peer, f.slot);
  if (request == nullptr && peer.awaited == 0) return Step::waits;
  const bool is_whole = request != nullptr && !announced && bytes == f.bytes;
  auto& message = is_whole ? c.whole = {} : peer.incoming.emplace_back();
  message.number = f.number;
  message.slot = f.slot;
  message.bytes = f.bytes;
  message.promised = bytes;
  message.request = request;
  message.announced = announced && request == nullptr;
  ++peer.begun;
  if (announced) {
    if (request != nullptr) send_own(peer, {.kind = Frame::Kind::go, .number = f.number});
    c.has_frame = false;
    return Step::done;
  }
  if (request == nullptr) keep(peer, message);
  if (fault_) return Step::waits;
  c.into = &message;
  return Step::done;
}

/// Handles the frame at the head of a connection. Afterwards the frame is gone, or its data have a
/// place.
Links::Step Links::open(Peer& peer, Connection& c) {
  using Kind = Frame::Kind;
  const auto& f = c.frame;
  const bool has_data = f.kind == Kind::data;
  if (f.begin > f.end || f.end > f.bytes || (!has_data && f.end != 0) ||
      f.bytes > std::uint64_t{std::numeric_limits<std::ptrdiff_t>::max()}) {
    accuse(peer, "its lengths contradict each other");
    return Step::waits;
  }
  switch (f.kind) {
    case Kind::data:
      c.at = f.begin;
      return begin_message(peer, c);
    case Kind::announce:
      return begin_message(peer, c);
    case Kind::go:
      go(peer, f.number);
      break;
    case Kind::forget:
      forget(peer, f.number);
      break;
    case Kind::revoke:
      revoke(peer, f.number);
      break;
    default:
      accuse(peer, "of an unknown kind");
      return Step::waits;
  }
  c.has_frame = false;
  return Step::done;
}

/// Handles what a connection has in its stage.
Links::Step Links::handle(Peer& peer, Connection& c) {
  if (!c.has_frame) {
    if (c.end - c.begin < sizeof c.frame) return Step::short_of_bytes;
    std::memcpy(&c.frame, c.stage.get() + c.begin, sizeof c.frame);
    c.begin += sizeof c.frame;
    c.has_frame = true;
  }
  if (c.into == nullptr) {
    const auto step = open(peer, c);
    if (step == Step::waits || !c.has_frame || c.into == nullptr) return step;
  }
  auto& message = *c.into;
  const auto take = std::min<std::uint64_t>(c.end - c.begin, c.frame.end - c.at);
  if (const auto to = place(c); take > 0 && !to.empty())
    std::memcpy(to.data(), c.stage.get() + c.begin, std::min<std::uint64_t>(take, to.size()));
  c.begin += take;
  c.at += take;
  message.got += take;
  if (c.at < c.frame.end) return Step::short_of_bytes;
  c.into = nullptr;
  c.has_frame = false;
  if (message.got == message.bytes) end_message(peer, message);
  return Step::done;
}

/// The memory for the next bytes of a message; none if they are not wanted.
std::span<std::byte> Links::place(const Connection& c) noexcept {
  const auto& m = *c.into;
  if (m.request != nullptr) {
    const auto end = std::min<std::uint64_t>(m.request->bytes, c.frame.end);
    return {m.request->data + std::min(c.at, end), end - std::min(c.at, end)};
  }
  if (m.early != nullptr) return {m.early.get() + c.at, c.frame.end - c.at};
  return {};
}

bool Links::read(Peer& peer, Connection& c) {
  bool moved = false;
  bool is_dry = false;
  for (std::size_t bytes = 0; !c.closed && !fault_;) {
    auto step = Step::done;
    while ((step = handle(peer, c)) == Step::done) moved = true;
    if (step == Step::waits || is_dry || bytes >= turn) return moved;
    // Data that no call awaits stay in the kernel.
    if (peer.awaited == 0) return moved;
    std::memmove(c.stage.get(), c.stage.get() + c.begin, c.end - c.begin);
    c.end -= std::exchange(c.begin, 0);
    const auto direct = c.into != nullptr ? place(c) : std::span<std::byte>();
    const std::size_t room = stage_bytes - c.end;
    std::array<iovec, 2> arrays{{{direct.data(), direct.size()}, {c.stage.get() + c.end, room}}};
    const auto got = c.channel.receive(std::span(arrays).subspan(direct.empty() ? 1 : 0));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      c.readable = false;
      return moved;
    }
    if (got <= 0) {
      if (got < 0 && errno == EPROTO) accuse(peer, "it is not encrypted with the connection's key");
      if (got < 0 && errno == ENOMEM)
        fail(peer, Errc::resource_exhausted, "there is no memory to decrypt it");
      c.closed = true;
      peer.lost = std::ranges::all_of(peer.connections, &Connection::closed);
      report(peer);
      return true;
    }
    moved = true;
    const auto count = static_cast<std::size_t>(got);
    bytes += count;
    is_dry = count < direct.size() + room && !c.channel.is_encrypted();
    const auto placed = std::min(count, direct.size());
    if (c.into != nullptr) {
      c.at += placed;
      c.into->got += placed;
    }
    c.end += count - placed;
  }
  return moved;
}

bool Links::read_all(Peer& peer) noexcept {
  bool moved = false;
  try {
    for (auto& c : peer.connections) {
      if (c.readable || c.has_frame || awaited_ <= few_connections) moved = read(peer, c) || moved;
      // A message begins on the first connection. The others are read while one has not ended.
      if (peer.incoming.empty() && !peer.ending) break;
    }
  } catch (const std::bad_alloc&) {
    fail(peer, Errc::resource_exhausted, "there is no memory for its messages");
  }
  return moved;
}

void Links::forget(Peer& peer, std::uint32_t number) {
  // The first part of a message comes before this frame, over the same connection.
  if (static_cast<std::int32_t>(number - peer.begun) >= 0)
    return accuse(peer, "it withdraws a message that it has not sent");
  for (auto& message : peer.incoming) {
    if (message.number != number || message.request != nullptr) continue;
    message.forgotten = true;
    drop(message);
    if (message.got == message.bytes) end_message(peer, message);
    return;
  }  // Otherwise a receive has matched it.
}

void Links::revoke(Peer& peer, std::uint32_t number) {
  const auto found = std::ranges::find_if(
      peer.incoming, [&](const Incoming& m) { return m.number == number && m.promised == 0; });
  if (found == peer.incoming.end()) return;
  auto* const request = found->request;
  peer.incoming.erase(found);
  if (request == nullptr || take_early(peer, *request)) return;
  // It waits for the next message again.
  request->next = std::exchange(peer.first, request);
  if (peer.last == nullptr) peer.last = request;
}

bool Links::has_arrived(int from, std::uint64_t slot) {
  Lock lock(*this);
  if (is_closing()) return false;
  auto& peer = peers_[static_cast<std::size_t>(from)];
  await(peer, 1);
  read_all(peer);
  await(peer, -1);
  return std::ranges::any_of(peer.incoming, [&](const Incoming& m) {
    return m.slot == slot && m.request == nullptr && !m.forgotten;
  });
}

}  // namespace tutti::backend::tcp
