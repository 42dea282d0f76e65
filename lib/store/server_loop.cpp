#include "store/server_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

// What epoll tells: the wake-up, a listener, or a client.
constexpr std::uint64_t wake_token = 0;
constexpr std::uint64_t first_listener = 1;
constexpr std::uint64_t first_client = first_listener + StoreListener::most;

constexpr std::size_t read_bytes = std::size_t{256} << 10;
constexpr int accepts_per_turn = 64;
/// A client with more than this unsent is not read from, until it has read itself.
constexpr std::size_t max_unsent = std::size_t{1} << 20;
/// What a reply costs beside its bytes, roughly.
constexpr std::size_t piece_bytes = 128;

bool add_to_epoll(const Descriptor& epoll, int fd, std::uint64_t token, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  return ::epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, fd, &event) == 0;
}

Bytes refusal(Errc code, std::string_view text) {
  text = text.substr(0, max_refusal_bytes);
  auto message = encode_greeting(
      server_magic, {.kind = static_cast<std::uint16_t>(1 + static_cast<unsigned>(code)),
                     .bytes = static_cast<std::uint32_t>(text.size())});
  const auto body = std::as_bytes(std::span(text));
  message.insert(message.end(), body.begin(), body.end());
  return message;
}

}  // namespace

StoreServerLoop::StoreServerLoop(const StoreServerOptions& options)
    : options_(options),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      listener_(options.host, options.port),
      last_id_(first_client),
      requests_({.keys = options.max_keys, .bytes = options.max_total_bytes},
                [this](Id id, const Reply& reply) { queue(id, reply); }),
      scratch_(read_bytes) {
  if (!options_.logger) options_.logger = default_logger();
  options_.handshake_timeout =
      std::clamp<std::chrono::nanoseconds>(options_.handshake_timeout, 1ms, 24h);
  if (options_.max_clients < 1)
    failf(Errc::invalid_argument, "store server: max_clients is {}; at least 1 is needed",
          options_.max_clients);
  if (!epoll_ || !wake_ || !add_to_epoll(epoll_, wake_.fd(), wake_token, EPOLLIN))
    failf(Errc::resource_exhausted, "store server: cannot make its descriptors: {}",
          system_text(errno));
  listener_.watch(epoll_, first_listener);
}

StoreServerLoop::~StoreServerLoop() {
  for (auto& [id, connection] : connections_) connection->socket.shut_down();
}

void StoreServerLoop::log(LogLevel level, const std::string& text) const noexcept {
  try {
    options_.logger(level, fmt::format("store server {}: {}", listener_.name(), text));
  } catch (...) {  // A logger must not throw; the clients are not to suffer from one that does.
  }
}

void StoreServerLoop::stop() noexcept {
  stop_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.fd(), &one, sizeof(one));
}

void StoreServerLoop::run() noexcept {
  while (!stop_) {
    try {
      turn();
    } catch (const std::exception& error) {
      // Out of memory, most likely: whoever is connected gets an answer when some is free again.
      log(LogLevel::error, error.what());
      std::this_thread::sleep_for(10ms);
    }
  }
}

int StoreServerLoop::timeout(Clock::time_point now) const {
  auto next = std::min(requests_.next_expiry(), listener_.resumes_at());
  if (!limits_.empty()) next = std::min(next, limits_.begin()->first);
  if (next == Clock::time_point::max()) return -1;
  if (next <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
  return static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
}

void StoreServerLoop::turn() {
  std::array<epoll_event, 256> events;
  const int count = ::epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()),
                                 timeout(Clock::now()));
  const auto now = Clock::now();
  std::vector<std::size_t> knocking;
  for (int i = 0; i < count; ++i) {
    const auto& event = events[static_cast<std::size_t>(i)];
    const auto token = event.data.u64;
    if (token == wake_token) continue;  // stop() is set.
    if (token < first_client) {
      knocking.push_back(token - first_listener);
      continue;
    }
    const auto found = connections_.find(token);
    if (found == connections_.end()) continue;
    auto& connection = *found->second;
    touch(connection);
    if ((event.events & ~std::uint32_t{EPOLLOUT}) == 0) continue;
    if ((connection.events & EPOLLIN) != 0)
      receive(connection);
    else
      connection.dead = true;  // It is not read from, so this is its end.
  }
  requests_.expire(now);
  settle_touched();
  close_late(now);
  // After those who are here: who has just introduced himself is no stranger any more.
  listener_.resume(now);
  for (const auto socket : knocking) accept_all(socket, now);
}

// --- New clients

void StoreServerLoop::accept_all(std::size_t socket, Clock::time_point now) {
  for (int i = 0; i < accepts_per_turn; ++i) {
    Descriptor client;
    switch (listener_.accept(socket, client)) {
      case StoreListener::Knock::nobody:
        return;
      case StoreListener::Knock::came:
        take_in(std::move(client), now);
        break;
      case StoreListener::Knock::gone:
        break;
      case StoreListener::Knock::full:
        if (drop_oldest_stranger()) break;
        const auto text = fmt::format(
            "no descriptor is left in the process of the store, which has {} clients; raise its "
            "limit (ulimit -n)",
            connections_.size());
        listener_.refuse(socket, refusal(Errc::resource_exhausted, text));
        warn(now, text);
        if (listener_.resumes_at() != Clock::time_point::max()) return;
    }
  }
}

void StoreServerLoop::take_in(Descriptor socket, Clock::time_point now) {
  if (connections_.size() >= static_cast<std::size_t>(options_.max_clients) &&
      !drop_oldest_stranger()) {
    const auto text = fmt::format("it has {} clients, which is its limit", options_.max_clients);
    const auto words = refusal(Errc::resource_exhausted, text);
    (void)::send(socket.fd(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    socket.shut_down();
    return warn(now, text);
  }
  tune(socket);
  const auto id = ++last_id_;
  auto connection = std::make_unique<Connection>(id, std::move(socket));
  connection->events = EPOLLIN;
  if (!add_to_epoll(epoll_, connection->socket.fd(), id, EPOLLIN)) return;
  connections_.emplace(id, std::move(connection));
  limits_.emplace(now + options_.handshake_timeout, id);
}

/// A thousand clients that are refused are one line a second.
void StoreServerLoop::warn(Clock::time_point now, const std::string& text) {
  if (now - last_warning_ < 1s) return;
  last_warning_ = now;
  log(LogLevel::warning, "a client was refused: " + text);
}

/// Somebody who connected and said nothing must not take the place of a rank.
bool StoreServerLoop::drop_oldest_stranger() {
  while (!limits_.empty()) {
    const auto id = limits_.begin()->second;
    limits_.erase(limits_.begin());
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    if (found->second->joined && !found->second->leaving) continue;
    close(id);
    return true;
  }
  return false;
}

// --- What clients say

void StoreServerLoop::receive(Connection& connection) {
  const auto n = ::recv(connection.socket.fd(), scratch_.data(), scratch_.size(), 0);
  if (n < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) connection.dead = true;
    return;
  }
  if (n == 0) {
    connection.dead = true;
    return;
  }
  auto bytes = std::span<const std::byte>(scratch_).first(static_cast<std::size_t>(n));
  if (!connection.joined) greet(connection, bytes);
  if (!connection.joined || connection.leaving) return;
  connection.reader.feed(bytes);
  (void)work(connection);
}

void StoreServerLoop::greet(Connection& connection, std::span<const std::byte>& bytes) {
  const auto n = std::min(bytes.size(), greeting_bytes - connection.greeting.size());
  connection.greeting.insert(connection.greeting.end(), bytes.begin(),
                             bytes.begin() + static_cast<std::ptrdiff_t>(n));
  bytes = bytes.subspan(n);
  if (!may_greet(client_magic, connection.greeting)) {
    log(LogLevel::debug, "closed a client that does not speak the protocol");
    connection.dead = true;
    return;
  }
  if (connection.greeting.size() < greeting_bytes) return;
  const auto greeting = decode_greeting(connection.greeting);
  const auto refuse = [&](const std::string& text) {
    push(connection, {.head = refusal(Errc::unsupported, text), .value = {}});
    leave(connection);
  };
  if (greeting.version != store_version)
    return refuse(fmt::format("it speaks version {} of its protocol, the client version {}",
                              store_version, greeting.version));
  if (greeting.kind != 0 || greeting.bytes != 0)
    return refuse(fmt::format("it checks no credentials, but the client sends some of kind {}",
                              greeting.kind));
  connection.joined = true;
  count_clients(1);
  push(connection, {.head = encode_greeting(server_magic, {}), .value = {}});
}

/// Handles the requests that are here. False when there was none to handle.
bool StoreServerLoop::work(Connection& connection) {
  bool any = false;
  try {
    while (!connection.leaving && connection.unsent <= max_unsent) {
      const auto frame = connection.reader.next();
      if (!frame) break;
      any = true;
      try {
        requests_.handle(connection.id, decode_request(*frame), Clock::now());
      } catch (const Error& error) {
        queue_error(connection, frame->id, error);
        leave(connection);
      }
    }
  } catch (const Error& error) {  // No frame can be found any more.
    queue_error(connection, 0, error);
    leave(connection);
  }
  count_input(connection);
  return any;
}

void StoreServerLoop::count_input(Connection& connection) {
  const auto now = connection.reader.buffered();
  input_bytes_ += now - connection.counted;
  connection.counted = now;
  if (input_bytes_ <= options_.max_total_bytes) return;
  if (const auto id = connection.reader.skip_unfinished())
    queue_error(connection, *id,
                Error(Errc::resource_exhausted,
                      fmt::format("store: requests on their way have {} bytes; at most {} are held",
                                  input_bytes_, options_.max_total_bytes)));
  input_bytes_ += connection.reader.buffered() - connection.counted;
  connection.counted = connection.reader.buffered();
}

// --- What they are told

void StoreServerLoop::queue(Id id, const Reply& reply) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto text = std::as_bytes(std::span(reply.text));
  const auto bytes = reply.outcome == Outcome::value ? reply.value->size() : text.size();
  const Frame header{.kind = static_cast<std::uint8_t>(reply.outcome),
                     .code = static_cast<std::uint8_t>(reply.code),
                     .id = reply.id};
  Piece piece{.head = encode_frame_header(header, bytes),
              .value = reply.outcome == Outcome::value ? reply.value : nullptr};
  piece.head.insert(piece.head.end(), text.begin(), text.end());
  push(*found->second, std::move(piece));
}

void StoreServerLoop::queue_error(Connection& connection, std::uint64_t id, const Error& error) {
  queue(connection.id,
        {.id = id, .outcome = Outcome::error, .code = error.code(), .text = error.message()});
}

void StoreServerLoop::push(Connection& connection, Piece piece) {
  if (connection.dead || connection.leaving) return;
  connection.unsent += piece.size() + piece_bytes;
  connection.out.push_back(std::move(piece));
  touch(connection);
}

void StoreServerLoop::send_out(Connection& connection) {
  while (!connection.out.empty() && !connection.dead) {
    std::array<iovec, 64> parts;
    std::size_t count = 0;
    std::size_t skip = connection.sent;
    const auto add = [&](const Bytes& bytes) {
      const auto skipped = std::min(skip, bytes.size());
      skip -= skipped;
      if (skipped == bytes.size()) return;
      // sendmsg() does not write to what it is given.
      parts[count++] = {const_cast<std::byte*>(bytes.data() + skipped), bytes.size() - skipped};
    };
    for (const auto& piece : connection.out) {
      if (count + 2 > parts.size()) break;
      add(piece.head);
      if (piece.value != nullptr) add(*piece.value);
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const auto n = ::sendmsg(connection.socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) connection.dead = true;
      return;
    }
    connection.sent += static_cast<std::size_t>(n);
    while (!connection.out.empty() && connection.sent >= connection.out.front().size()) {
      const auto size = connection.out.front().size();
      connection.sent -= size;
      connection.unsent -= size + piece_bytes;
      connection.out.pop_front();
    }
  }
}

// --- The life of a connection

void StoreServerLoop::touch(Connection& connection) {
  if (connection.touched) return;
  touched_.push_back(connection.id);
  connection.touched = true;
}

/// The last reply is queued: it may take its time, but not for ever.
void StoreServerLoop::leave(Connection& connection) {
  connection.leaving = true;
  limits_.emplace(Clock::now() + options_.handshake_timeout, connection.id);
  touch(connection);
}

void StoreServerLoop::settle_touched() {
  for (std::size_t i = 0; i < touched_.size(); ++i) {  // It may grow meanwhile.
    const auto found = connections_.find(touched_[i]);
    if (found == connections_.end()) continue;
    auto& connection = *found->second;
    connection.touched = false;
    do send_out(connection);
    while (!connection.dead && connection.joined && work(connection));
    if (connection.dead || (connection.leaving && connection.out.empty()))
      close(connection.id);
    else
      watch(connection);
  }
  touched_.clear();
}

void StoreServerLoop::watch(Connection& connection) {
  const bool reads = !connection.leaving && connection.unsent <= max_unsent;
  const std::uint32_t events = (reads ? std::uint32_t{EPOLLIN} : std::uint32_t{EPOLLRDHUP}) |
                               (connection.out.empty() ? 0U : std::uint32_t{EPOLLOUT});
  if (events == connection.events) return;
  epoll_event event{};
  event.events = connection.events = events;
  event.data.u64 = connection.id;
  if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, connection.socket.fd(), &event) != 0)
    close(connection.id);
}

void StoreServerLoop::close_late(Clock::time_point now) {
  while (!limits_.empty() && limits_.begin()->first <= now) {
    const auto id = limits_.begin()->second;
    limits_.erase(limits_.begin());
    const auto found = connections_.find(id);
    if (found != connections_.end() && (!found->second->joined || found->second->leaving))
      close(id);
  }
}

void StoreServerLoop::close(Id id) {
  requests_.forget(id);
  const auto found = connections_.find(id);
  const auto connection = std::move(found->second);
  connections_.erase(found);
  input_bytes_ -= connection->counted;
  // Explicitly: where a forked child has the descriptor too, closing it would not do.
  (void)::epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, connection->socket.fd(), nullptr);
  connection->socket.shut_down();
  if (connection->joined) count_clients(-1);
}

void StoreServerLoop::count_clients(int change) {
  {
    const std::lock_guard lock(mutex_);
    clients_ += change;
  }
  if (change < 0) left_.notify_all();
}

int StoreServerLoop::clients() const {
  const std::lock_guard lock(mutex_);
  return clients_;
}

bool StoreServerLoop::wait_until_left(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto nobody = [&] { return clients_ == 0; };
  if (deadline.time() == Clock::time_point::max()) {
    left_.wait(lock, nobody);
    return true;
  }
  return left_.wait_until(lock, deadline.time(), nobody);
}

}  // namespace tutti::internal
