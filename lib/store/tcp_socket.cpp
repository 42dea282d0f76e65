#include "store/tcp_socket.hpp"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <asio/ip/v6_only.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <tutti/deadline.hpp>

#include "store/is_listening.hpp"
#include "store/protocol.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using Clock = Deadline::Clock;

/// Time limit of one attempt, so that a stopped server does not use up the whole timeout.
constexpr auto attempt_limit = 15s;
/// Time for which a client retries while the server is full.
constexpr auto full_limit = 5s;

/// Assigns a descriptor to a socket; closes it if that fails. A negative descriptor stands for the
/// error in errno. Callers make the descriptor, because Asio's open() and accept() make it without
/// close-on-exec.
template <typename Socket>
std::error_code adopt(Socket& socket, const tcp& protocol, int descriptor) {
  if (descriptor < 0) return {errno, std::system_category()};
  std::error_code error;
  socket.assign(protocol, descriptor, error);
  if (error) ::close(descriptor);
  return error;
}

template <typename Socket>
std::error_code open(Socket& socket, const tcp& protocol) {
  return adopt(socket, protocol, ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// Asio's system category has the values of errno, but not all compare equal to std::errc.
bool no_descriptor(const std::error_code& error) {
  return error.value() == EMFILE || error.value() == ENFILE;
}

/// Growing pauses between attempts, different on every rank.
class Backoff {
 public:
  Backoff()
      : random_(static_cast<std::minstd_rand::result_type>(Clock::now().time_since_epoch().count() ^
                                                           (std::int64_t{::getpid()} << 16))) {}
  std::chrono::nanoseconds next() {
    const auto pause = next_;
    next_ = std::min<std::chrono::nanoseconds>(next_ * 3 / 2, 500ms);
    std::uniform_real_distribution<double> jitter(0.5, 1.0);
    return std::chrono::nanoseconds(
        std::llround(static_cast<double>(pause.count()) * jitter(random_)));
  }

 private:
  std::minstd_rand random_;
  std::chrono::nanoseconds next_ = 5ms;
};

/// The reason why an attempt failed, after which another attempt may succeed.
struct Problem {
  std::string text;
  bool full = false;    ///< The server has too many clients.
  bool in_time = true;  ///< False: the attempt reached its time limit.
};

/// "48 54 54 50 'HTTP'": the bytes received instead of a handshake.
std::string in_quotes(std::span<const std::byte> bytes) {
  std::string hex;
  std::string text;
  for (const auto byte : bytes) {
    const auto c = std::to_integer<unsigned char>(byte);
    hex += fmt::format("{:02x} ", c);
    text += c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '.';
  }
  return fmt::format("{}'{}'", hex, text);
}

class Attempt {
 public:
  Attempt(asio::io_context& io, const std::string& name, Clock::time_point until)
      : io_(io), name_(name), until_(until), socket_(io) {}

  tcp::socket connect(const tcp::endpoint& to) && {
    const auto error = open(socket_, to.protocol());
    if (no_descriptor(error))
      failf(Errc::resource_exhausted, "store {}: cannot make a socket: {}", name_, error.message());
    if (error) throw Problem{error.message()};
    tune(socket_);
    finish("no answer to connecting",
           [&](auto handler) { socket_.async_connect(to, std::move(handler)); });
    const auto hello = encode_handshake(client_magic, {});
    finish(silent, [&](auto handler) {
      asio::async_write(socket_, asio::buffer(hello), std::move(handler));
    });
    receive_handshake();
    return std::move(socket_);
  }

 private:
  static constexpr auto silent =
      "connected, but it did not answer the handshake; is it a store of tutti?";

  /// Runs one operation to its end. Throws a Problem when the operation fails, or with the text
  /// `late` when it does not end in time.
  template <typename Start>
  void finish(const char* late, Start start) {
    std::optional<std::error_code> result;
    start([&](std::error_code error, auto...) { result = error; });
    io_.restart();
    while (!result && Clock::now() < until_) (void)io_.run_one_until(until_);
    if (!result) {
      socket_.close();
      io_.run();  // Ends the cancelled operation, which refers to local variables.
      throw Problem{late, false, false};
    }
    if (*result == asio::error::eof)
      throw Problem{"connected, but the other side closed the connection"};
    if (*result) throw Problem{result->message()};
  }

  void receive_handshake() {
    std::array<std::byte, handshake_bytes> bytes;
    std::size_t got = 0;
    const auto missing = [&bytes](std::error_code error, std::size_t n) {
      const bool more = !error && may_be_handshake(server_magic, std::span(bytes).first(n));
      return more ? bytes.size() - n : 0;
    };
    finish(silent, [&](auto handler) {
      asio::async_read(socket_, asio::buffer(bytes), missing,
                       [&got, handler](std::error_code error, std::size_t n) mutable {
                         got = n;
                         handler(error);
                       });
    });
    const auto begin = std::span(bytes).first(got);
    // On loopback a socket connects to itself if the kernel gives it the port that it connects to.
    if (may_be_handshake(client_magic, begin)) throw Problem{"connected to itself"};
    if (!may_be_handshake(server_magic, begin))
      failf(Errc::invalid_argument,
            "store {}: the program at this address does not speak tutti's store protocol; first "
            "bytes: {}",
            name_, in_quotes(begin));
    const auto handshake = decode_handshake(bytes);
    if (handshake.kind == 0) {
      if (handshake.version != store_version || handshake.bytes != 0)
        failf(
            Errc::unsupported,
            "store {}: it speaks version {} of the store protocol, this library speaks version {}",
            name_, handshake.version, store_version);
      return;
    }
    std::string why(std::min<std::size_t>(handshake.bytes, max_refusal_bytes), '\0');
    finish(silent,
           [&](auto handler) { asio::async_read(socket_, asio::buffer(why), std::move(handler)); });
    if (handshake.kind == 1 + static_cast<int>(Errc::resource_exhausted)) throw Problem{why, true};
    failf(Errc::unsupported, "store {} refused this client: {}", name_, why);
  }

  asio::io_context& io_;
  const std::string& name_;
  const Clock::time_point until_;
  tcp::socket socket_;
};

}  // namespace

tcp::socket connect_to_store(asio::io_context& io, const std::string& host, int port,
                             std::chrono::nanoseconds timeout) {
  const auto name = endpoint_text(host, port);
  const auto deadline = Deadline::after(timeout);
  Backoff backoff;
  Deadline full_until;
  Problem problem;
  for (int attempts = 1;; ++attempts) {
    std::error_code unknown;
    const auto addresses = tcp::resolver(io).resolve(host, std::to_string(port),
                                                     tcp::resolver::numeric_service, unknown);
    if (unknown) problem = {.text = unknown.message()};
    for (const auto& address : addresses) {
      const auto until = std::min(deadline.time(), Clock::now() + attempt_limit);
      try {
        return Attempt(io, name, until).connect(address.endpoint());
      } catch (const Problem& why) {
        // An attempt that reached the time limit says less than the one before.
        if (why.in_time || problem.text.empty()) problem = why;
      }
    }
    full_until = !problem.full ? Deadline() : full_until.is_set() ? full_until : full_limit;
    std::this_thread::sleep_for(std::min(backoff.next(), deadline.remaining()));
    if (!deadline.expired() && !full_until.expired()) continue;
    failf(problem.full ? Errc::resource_exhausted : Errc::timeout,
          "store {}: cannot join within {:.3g} s ({} attempts): {}", name,
          std::chrono::duration<double>(full_until.expired() ? full_limit : timeout).count(),
          attempts, problem.text);
  }
}

StoreListener::StoreListener(asio::io_context& io, const std::string& host, int port,
                             Accepted accepted, MakeRoom make_room, Refused refused)
    : io_(io),
      port_(port),
      accepted_(std::move(accepted)),
      make_room_(std::move(make_room)),
      refused_(std::move(refused)),
      spare_(io) {
  if (port < 0 || port > 65535)
    failf(Errc::invalid_argument, "store server: port is {}; it must be 0 (any free port) to 65535",
          port);
  std::error_code error;
  if (host.empty()) {
    listen_at({tcp::v6(), 0}, true, error);
    if (error && error.value() != EADDRINUSE)  // A machine without IPv6.
      listen_at({tcp::v4(), 0}, false, error);
  } else {
    using Resolver = tcp::resolver;
    const auto addresses = Resolver(io).resolve(
        host, std::to_string(port), Resolver::passive | Resolver::numeric_service, error);
    if (error) failf(Errc::invalid_argument, "store server: host '{}': {}", host, error.message());
    for (const auto& address : addresses) listen_at(address.endpoint(), false, error);
  }
  name_ = endpoint_text(host.empty() ? "*" : host, port_);
  if (!listeners_.empty()) error = open(spare_, tcp::v4());
  if (!error) return;
  failf(no_descriptor(error)             ? Errc::resource_exhausted
        : error.value() == EADDRNOTAVAIL ? Errc::invalid_argument
                                         : Errc::backend,
        "store server: cannot listen on {}: {}", name_, error.message());
}

StoreListener::~StoreListener() {
  for (auto& listener : listeners_)  // Also ends the listening socket in a forked child.
    (void)::shutdown(listener.acceptor.native_handle(), SHUT_RDWR);
}

void StoreListener::listen_at(tcp::endpoint endpoint, bool both_families, std::error_code& error) {
  endpoint.port(static_cast<std::uint16_t>(port_));  // 0: the kernel chooses, once for all.
  tcp::acceptor acceptor(io_);
  error = open(acceptor, endpoint.protocol());
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.protocol() == tcp::v6())
    acceptor.set_option(asio::ip::v6_only(!both_families), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);
  if (error) return;
  port_ = acceptor.local_endpoint().port();
  listeners_.push_back({std::move(acceptor), asio::steady_timer(io_)});
  wait_at(listeners_.back());
}

/// Accepts one client at a time. When a client can be neither accepted nor refused, waits 100 ms.
void StoreListener::wait_at(Listener& listener) {
  listener.acceptor.async_wait(tcp::acceptor::wait_read, [this, &listener](std::error_code closed) {
    if (closed) return;
    if (accept_at(listener)) return wait_at(listener);
    listener.pause.expires_after(100ms);
    listener.pause.async_wait([this, &listener](std::error_code ended) {
      if (!ended) wait_at(listener);
    });
  });
}

bool StoreListener::accept_at(Listener& listener) try {
  tcp::socket socket(io_);
  const auto accept = [&] {
    return adopt(socket, listener.acceptor.local_endpoint().protocol(),
                 ::accept4(listener.acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
  };
  const auto error = accept();
  if (!error) {
    accepted_(std::move(socket));
  } else if (no_descriptor(error) && !make_room_()) {
    spare_.close();
    if (!accept()) refused_(socket);
    return !open(spare_, tcp::v4());  // Another thread may have taken the descriptor.
  }
  // After other errors the client has disconnected, and the next one is accepted at once.
  return error.value() != ENOMEM && error.value() != ENOBUFS;
} catch (const std::exception&) {  // No memory.
  return false;
}

bool is_listening(const std::string& host, int port) {
  asio::io_context io;
  std::error_code error;
  const auto addresses =
      tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::numeric_service, error);
  for (const auto& address : addresses) {
    tcp::socket socket(io);
    error = open(socket, address.endpoint().protocol());
    if (!error) socket.connect(address.endpoint(), error);
    if (!error) return true;
  }
  return false;
}

void tune(tcp::socket& socket) noexcept {
  const auto set = [&](int level, int option, int value) {
    // Options that the system does not know are ignored: the connection works without them.
    (void)::setsockopt(socket.native_handle(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);  // Limit for unacknowledged data, in milliseconds.
}

void shut_down(tcp::socket& socket) noexcept {
  std::error_code ignored;
  socket.shutdown(tcp::socket::shutdown_both, ignored);
  socket.close(ignored);
}

std::string endpoint_text(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

}  // namespace tutti::internal
