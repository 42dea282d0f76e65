#include "links.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "mesh/sockets.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti::backend::tcp {
namespace {

using namespace std::chrono_literals;

/// Messages from here on have one part per connection, each of at least half as many bytes.
constexpr std::size_t split_from = std::size_t{128} << 10;
/// Larger messages of a send, whose receive may come late, are announced.
constexpr std::size_t announced_send = std::size_t{1} << 20;

std::size_t count_of_parts(std::size_t bytes, std::size_t connections) {
  return bytes < split_from ? 1 : std::min(connections, bytes / (split_from / 2));
}

}  // namespace

Links::Links(Channels channels, bool announces, std::chrono::nanoseconds dead_after,
             std::function<void(int)> ended)
    : mesh::Links(std::move(ended)),
      peers_(channels.size()),
      announces_(announces),
      dead_after_(dead_after) {
  std::size_t all = 0;
  for (std::size_t r = 0; r < channels.size(); ++r) {
    peers_[r].connections.resize(channels[r].size());
    for (std::size_t i = 0; i < channels[r].size(); ++i, ++all) {
      auto& connection = peers_[r].connections[i];
      connection.channel = std::move(channels[r][i]);
      connection.stage = std::make_unique<std::byte[]>(stage_bytes);
    }
  }
  open_.reserve(all);
  for (int* epoll : {&epoll_, &watching_epoll_}) {
    *epoll = ::epoll_create1(EPOLL_CLOEXEC);
    const auto add = [&](int descriptor, std::uint32_t events, std::uint64_t what) {
      epoll_event event{};
      event.events = events;
      event.data.u64 = what;
      if (*epoll < 0 || ::epoll_ctl(*epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
        const int why = errno;
        close();
        internal::failf(Errc::resource_exhausted, "tcp: cannot watch the connections: {}",
                        std::strerror(why));
      }
    };
    constexpr auto none = std::numeric_limits<std::uint64_t>::max();
    add(epoll == &epoll_ ? wake_.descriptor() : event_.descriptor(), EPOLLIN, none);
    for (std::size_t r = 0; r < peers_.size(); ++r)
      for (std::size_t i = 0; i < peers_[r].connections.size(); ++i)
        // Data do not wake the thread in attend(): a waiting thread receives them.
        add(peers_[r].connections[i].channel.descriptor(),
            (epoll == &epoll_ ? EPOLLIN | EPOLLOUT : 0U) | EPOLLRDHUP | EPOLLET,
            r * most_connections + i);
  }
}

Links::~Links() {
  close();
}

/// Counts what is awaited of a peer.
void Links::await(Peer& peer, int more) noexcept {
  const bool before = peer.awaited > 0;
  peer.awaited += more;
  if (before && peer.awaited == 0) awaited_ -= peer.connections.size();
  if (!before && peer.awaited > 0) awaited_ += peer.connections.size();
}

void Links::end(Request& request, bool failed) noexcept {
  if (!request.sends) await(peer_of(request), -1);
  mesh::Links::end(request, failed);
}

// Sending.

void Links::send(Request& request, int to, std::uint64_t slot, const void* data, std::size_t bytes,
                 bool in_call) {
  auto& peer = peers_[static_cast<std::size_t>(to)];
  std::unique_ptr<OwnPart> announce;
  Lock lock(*this);
  const auto parts = count_of_parts(bytes, peer.connections.size());
  if (parts > 1) request.parts = std::make_unique<Part[]>(parts - 1);
  if (announces_ || (!in_call && bytes > announced_send)) announce = std::make_unique<OwnPart>();
  begin(request, to, true);
  request.slot = slot;
  request.data = static_cast<std::byte*>(const_cast<void*>(data));
  request.bytes = bytes;
  request.parts_left = static_cast<int>(std::max<std::size_t>(parts, 1));
  // A small message to a peer that ended while this rank made no calls would otherwise count as
  // sent.
  if (!is_closing() && std::exchange(idle_, false)) collect(watching_epoll_, 0ms, nullptr);
  if (is_closing() || peer.lost || peer.deaf) return end(request, true);
  request.part.frame = {.number = peer.sent++, .slot = slot, .bytes = bytes};
  if (announce == nullptr) return queue_data(peer, request);
  announce->frame = request.part.frame;
  announce->frame.kind = Frame::Kind::announce;
  request.next = std::exchange(peer.announced, &request);
  await(peer, 1);
  queue(peer, peer.connections[0], *announce.release());
}

/// Puts the parts of a message into the queues of the connections.
void Links::queue_data(Peer& peer, Request& request) noexcept {
  const auto parts = static_cast<std::size_t>(request.parts_left);
  const auto frame = request.part.frame;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    // The request may end, and its memory with it, while its last part is queued.
    auto& part = i == 0 ? request.part : request.parts[i - 1];
    const auto end = i + 1 == parts ? frame.bytes : (i + 1) * (frame.bytes / parts / 64 * 64);
    part = {.frame = frame, .request = &request};
    part.frame.begin = begin;
    part.frame.end = end;
    begin = end;
    queue(peer, peer.connections[i], part);
    if (peer.deaf) return;
  }
}

void Links::queue(Peer& peer, Connection& c, Part& part) noexcept {
  (c.last == nullptr ? c.first : c.last->next) = &part;
  c.last = &part;
  if (c.first != &part) return;
  ++queued_;
  write(peer, c);
}

void Links::send_own(Peer& peer, const Frame& frame) {
  if (peer.lost || peer.deaf) return;
  auto part = std::make_unique<OwnPart>();
  part->frame = frame;
  queue(peer, peer.connections[0], *part.release());
}

bool Links::write(Peer& peer, Connection& c) noexcept {
  std::size_t written = 0;
  while (c.first != nullptr && written < turn) {
    std::array<iovec, 16> arrays;  // NOLINT(*-member-init): of them `count` are used.
    std::size_t count = 0;
    std::size_t all = 0;
    const auto add = [&](void* data, std::size_t bytes) {
      arrays[count++] = {data, bytes};
      all += bytes;
    };
    for (auto* part = c.first; part != nullptr && count + 2 <= arrays.size() && all < turn;
         part = part->next) {
      if (part->done < sizeof(Frame))
        add(reinterpret_cast<std::byte*>(&part->frame) + part->done, sizeof(Frame) - part->done);
      const auto at = std::max(part->done, sizeof(Frame)) - sizeof(Frame);
      const auto bytes = part->frame.end - part->frame.begin;
      auto* const data = part->request != nullptr ? part->request->data + part->frame.begin
                                                  : static_cast<OwnPart*>(part)->data.data();
      if (bytes > at) add(data + at, bytes - at);
    }
    const auto sent = c.channel.send({arrays.data(), count});
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) report(peer);
      return written > 0;
    }
    written += static_cast<std::size_t>(sent);
    advance(c, static_cast<std::size_t>(sent));
    if (static_cast<std::size_t>(sent) < all && !c.channel.is_encrypted()) return written > 0;
  }
  return written > 0;
}

/// So many bytes of the queue have been sent.
void Links::advance(Connection& c, std::size_t bytes) noexcept {
  while (c.first != nullptr) {
    auto* const part = c.first;
    const auto whole = sizeof(Frame) + (part->frame.end - part->frame.begin);
    const auto take = std::min<std::size_t>(bytes, whole - part->done);
    part->done += take;
    bytes -= take;
    if (part->done < whole) return;
    c.first = part->next;
    if (c.first == nullptr) {
      c.last = nullptr;
      --queued_;
    }
    if (part->request == nullptr)
      delete static_cast<OwnPart*>(part);
    else if (--part->request->parts_left == 0)
      end(*part->request, false);
  }
}

bool Links::write_all() noexcept {
  bool moved = false;
  if (queued_ == 0) return false;
  for (auto& peer : peers_)
    for (auto& c : peer.connections)
      if (c.first != nullptr) moved = write(peer, c) || moved;
  return moved;
}

/// Ends all sends to a peer that cannot get them.
void Links::stop_sending(Peer& peer) noexcept {
  peer.deaf = true;
  const auto stop = [&](Request& request) {  // Several of its parts may be in queues.
    if (!request.ended) end(request, true);
  };
  for (auto& c : peer.connections) {
    if (c.first != nullptr) --queued_;
    while (c.first != nullptr) {
      auto* const part = std::exchange(c.first, c.first->next);
      if (part->request == nullptr)
        delete static_cast<OwnPart*>(part);
      else
        stop(*part->request);
    }
    c.last = nullptr;
  }
  while (peer.announced != nullptr) {
    await(peer, -1);
    stop(*std::exchange(peer.announced, peer.announced->next));
  }
}

void Links::go(Peer& peer, std::uint32_t number) noexcept {
  for (auto** at = &peer.announced; *at != nullptr; at = &(*at)->next) {
    auto& request = **at;
    if (request.part.frame.number != number) continue;
    *at = request.next;
    await(peer, -1);
    return queue_data(peer, request);
  }  // Otherwise the send has been withdrawn.
}

// Withdrawals.

/// The queues keep copies of what they still have to send of a request.
void Links::give_copies(Peer& peer, Request& request) {
  for (auto& c : peer.connections)
    for (auto** at = &c.first; *at != nullptr; at = &(*at)->next) {
      auto& part = **at;
      if (part.request != &request) continue;
      auto copy = std::make_unique<OwnPart>();
      static_cast<Part&>(*copy) = part;
      copy->request = nullptr;
      const auto* const data = request.data + part.frame.begin;
      copy->data.assign(data, data + (part.frame.end - part.frame.begin));
      if (c.last == &part) c.last = copy.get();
      *at = copy.release();
    }
}

bool Links::withdraw(Request& request) noexcept {
  Lock lock(*this);
  auto& peer = peer_of(request);
  if (request.sends) {
    if (request.failed || peer.deaf || peer.lost || peer.connections.empty()) {
      if (!request.ended) {
        stop_sending(peer);
        if (!request.ended) end(request, true);
      }
      return true;
    }
    Frame frame{.kind = Frame::Kind::forget, .number = request.part.frame.number};
    try {
      for (auto** at = &peer.announced; *at != nullptr; at = &(*at)->next)
        if (*at == &request) {
          *at = request.next;
          await(peer, -1);
          frame.kind = Frame::Kind::revoke;
          break;
        }
      if (!request.ended) {
        give_copies(peer, request);
        need_watcher();
      }
      send_own(peer, frame);
    } catch (const std::bad_alloc&) {
      stop_sending(peer);
      fail(peer, Errc::resource_exhausted, "there is no memory to withdraw a message");
    }
  } else if (!request.ended) {
    unlink(peer, request);
  }
  if (!request.ended) end(request, true);
  return true;
}

/// Takes a receive out of the lists. What arrives for it is not wanted.
void Links::unlink(Peer& peer, Request& request) noexcept {
  Request* before = nullptr;
  for (auto* r = peer.first; r != nullptr; before = std::exchange(r, r->next)) {
    if (r != &request) continue;
    (before == nullptr ? peer.first : before->next) = r->next;
    if (peer.last == r) peer.last = before;
    return;
  }
  const auto leave = [&](Incoming& message) {
    if (message.request != &request) return;
    message.request = nullptr;
    message.forgotten = true;
  };
  for (auto& message : peer.incoming) leave(message);
  for (auto& c : peer.connections) leave(c.whole);
}

// Progress, ends, faults.

bool Links::progress() noexcept {
  if (awaited_ > few_connections) collect(epoll_, 0ms, nullptr);
  bool moved = false;
  for (auto& peer : peers_)
    if (peer.awaited > 0 && !peer.lost) moved = read_all(peer) || moved;
  return write_all() || moved;
}

/// Ends connections whose peer's machine does not answer. TCP_USER_TIMEOUT would also end those to
/// a rank that does not read, because it is late.
void Links::serve() noexcept {
  const auto now = Deadline::Clock::now();
  if (dead_after_.count() == 0 || now < next_look_) return;
  next_look_ = now + dead_after_ / 10;
  for (auto& peer : peers_)
    for (auto& c : peer.connections) {
      const auto silent = mesh::unanswered(c.channel.descriptor());
      if (!silent) {
        c.unanswered_since = {};
      } else if (c.unanswered_since == Deadline::Clock::time_point() ||
                 now - *silent > c.unanswered_since) {
        c.unanswered_since = now;
      } else if (*silent >= dead_after_ && now - c.unanswered_since >= dead_after_ / 2) {
        ::shutdown(c.channel.descriptor(), SHUT_RDWR);
        report(peer);
      }
    }
}

void Links::collect(int epoll, std::chrono::milliseconds time, Lock* lock) noexcept {
  std::array<epoll_event, 64> events;  // NOLINT(*-member-init)
  if (lock != nullptr) lock->get().unlock();
  const int count =
      ::epoll_wait(epoll, events.data(), events.size(), static_cast<int>(time.count()));
  if (lock != nullptr) lock->take();
  for (int i = 0; i < count; ++i) {
    const auto& event = events[static_cast<std::size_t>(i)];
    const auto at = event.data.u64 / most_connections;
    if (at >= peers_.size()) continue;  // Of event_ or wake_.
    auto& peer = peers_[at];
    const auto connection = event.data.u64 % most_connections;
    if (connection >= peer.connections.size()) continue;  // After close().
    peer.connections[connection].readable = true;
    if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0U) report(peer);
  }
}

void Links::sleep(Lock& lock, bool watches, bool moves, std::chrono::milliseconds time) {
  if (!watches) return collect(epoll_, time, &lock);
  std::array<pollfd, 2> events{{{watching_epoll_, POLLIN, 0}, {moves ? epoll_ : -1, POLLIN, 0}}};
  lock.get().unlock();
  (void)::poll(events.data(), events.size(), static_cast<int>(time.count()));
  lock.take();
  if (is_closing()) return;
  collect(watching_epoll_, 0ms, nullptr);
  if (moves) collect(epoll_, 0ms, nullptr);
}

/// The connection to a peer has ended, or is about to.
void Links::report(Peer& peer) noexcept {
  if (std::exchange(peer.ending, true)) return;
  stop_sending(peer);  // No peer ends one direction alone.
  report_end(static_cast<int>(&peer - peers_.data()));
}

void Links::accuse(Peer& peer, const char* why) noexcept {
  fail(peer, Errc::backend, why);
}

/// Ends the mesh: the watching thread takes the error.
void Links::fail(Peer& peer, Errc code, const char* why) noexcept {
  if (fault_) return;
  const auto rank = &peer - peers_.data();
  fault_ = internal::described(
      code, [&] { return Error(code, fmt::format("tcp: a frame of rank {}: {}", rank, why)); });
  event_.set();
}

std::optional<Error> Links::fault() {
  Lock lock(*this);
  return fault_;
}

void Links::flush(Deadline limit) {
  Lock lock(*this);
  while (queued_ > 0 && !limit.expired())
    if (!write_all()) collect(epoll_, 1ms, nullptr);
  open_.clear();
  for (const auto& peer : peers_)
    for (const auto& c : peer.connections)
      if (!peer.ending) open_.push_back(c.channel.descriptor());
  mesh::drain(open_);
}

std::optional<int> Links::unreceived() {
  Lock lock(*this);
  if (is_closing()) return std::nullopt;
  for (auto& peer : peers_) {
    await(peer, 1);
    if (!peer.lost) read_all(peer);
    await(peer, -1);
    if (std::ranges::any_of(peer.incoming,
                            [](const Incoming& m) { return m.request == nullptr && !m.forgotten; }))
      return static_cast<int>(&peer - peers_.data());
  }
  return std::nullopt;
}

void Links::close() noexcept {
  Lock lock(*this);
  if (!stop(lock)) return;
  for (auto& peer : peers_) {
    stop_sending(peer);
    while (peer.first != nullptr) end(*std::exchange(peer.first, peer.first->next), true);
    peer.last = nullptr;
    const auto stop_receiving = [&](Incoming& message) {
      if (message.request != nullptr) end(*std::exchange(message.request, nullptr), true);
    };
    for (auto& message : peer.incoming) stop_receiving(message);
    for (auto& c : peer.connections) stop_receiving(c.whole);
    peer.connections.clear();
    peer.incoming.clear();
  }
  for (const int epoll : {epoll_, watching_epoll_})
    if (epoll >= 0) ::close(epoll);
  set_closed();
}

}  // namespace tutti::backend::tcp
