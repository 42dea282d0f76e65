#include "store/tcp_socket.hpp"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <asio/ip/v6_only.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <tutti/deadline.hpp>
#include <tutti/log.hpp>

#include "store/handshake.hpp"
#include "store/is_listening.hpp"
#include "store/protocol.hpp"
#include "values/fail.hpp"
#include "values/port_range.hpp"

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

constexpr auto no_answer = "no answer to connecting";

class Attempt {
 public:
  Attempt(asio::io_context& io, const std::string& name, const StoreIdentity& identity,
          Clock::time_point until)
      : io_(io), name_(name), identity_(identity), until_(until), socket_(io) {}

  tcp::socket connect(const tcp::endpoint& to) && {
    const auto error = open(socket_, to.protocol());
    if (no_descriptor(error))
      failf(Errc::resource_exhausted, "store {}: cannot make a socket: {}", name_, error.message());
    if (error) throw Problem{error.message()};
    tune(socket_, silence_of_server);
    finish(no_answer, [&](auto handler) { socket_.async_connect(to, std::move(handler)); });
    if (identity_.token) {
      authenticate();
    } else {
      write(encode_handshake(client_magic, {}));
      std::array<std::byte, handshake_bytes> welcome;
      require(receive_handshake(welcome), 0);
    }
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

  void write(std::span<const std::byte> bytes) {
    finish(silent, [&](auto handler) {
      asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), std::move(handler));
    });
  }

  void read(std::span<std::byte> bytes) {
    finish(silent, [&](auto handler) {
      asio::async_read(socket_, asio::buffer(bytes.data(), bytes.size()), std::move(handler));
    });
  }

  void authenticate() {
    const ClientHandshake client(identity_);
    write(client.hello());
    std::array<std::byte, handshake_bytes> header;
    require(receive_handshake(header), server_proof_bytes);
    std::array<std::byte, server_proof_bytes> proof;
    read(proof);
    const auto answer = client.answer(header, proof);
    if (!answer)
      failf(Errc::mismatch,
            "store {}: the server has another token than this client; give both the same "
            "TUTTI_TOKEN_FILE, or another program answers at this address",
            name_);
    write(*answer);
    require(receive_handshake(header), 0);
  }

  /// Throws unless the server accepts this client and `bytes` more bytes follow.
  void require(const Handshake& handshake, std::size_t bytes) const {
    if (handshake.version != store_version)
      failf(Errc::unsupported,
            "store {}: it speaks version {} of the store protocol, this library speaks version {}",
            name_, handshake.version, store_version);
    if (handshake.bytes != bytes)
      failf(Errc::mismatch,
            "store {}: the server sent {} bytes of proof instead of {}; it does not check the "
            "token of this client",
            name_, handshake.bytes, bytes);
  }

  Handshake receive_handshake(std::span<std::byte, handshake_bytes> bytes) {
    std::size_t got = 0;
    const auto missing = [&bytes](std::error_code error, std::size_t n) {
      const bool more = !error && may_be_handshake(server_magic, std::span(bytes).first(n));
      return more ? bytes.size() - n : 0;
    };
    finish(silent, [&](auto handler) {
      asio::async_read(socket_, asio::buffer(bytes.data(), bytes.size()), missing,
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
    if (handshake.kind == 0) return handshake;
    std::string why(std::min<std::size_t>(handshake.bytes, max_refusal_bytes), '\0');
    read(std::as_writable_bytes(std::span(why)));
    if (handshake.kind == 1 + static_cast<int>(Errc::resource_exhausted)) throw Problem{why, true};
    // A refusal is not proved: its code decides nothing but the kind of error.
    const auto code = handshake.kind == 1 + static_cast<int>(Errc::mismatch) ? Errc::mismatch
                      : handshake.kind == 1 + static_cast<int>(Errc::invalid_argument)
                          ? Errc::invalid_argument
                          : Errc::unsupported;
    failf(code, "store {} refused this client: {}", name_, why);
  }

  asio::io_context& io_;
  const std::string& name_;
  const StoreIdentity& identity_;
  const Clock::time_point until_;
  tcp::socket socket_;
};

/// The reason why an attempt at `address` failed, with the address if `host` is a name.
std::string at_address(const std::string& host, const asio::ip::address& address,
                       const std::string& why) {
  const auto number = address.to_string();
  auto text = number == host ? why : fmt::format("{}: {}", number, why);
  if (address.is_loopback()) text += fmt::format("; {} is loopback: this host", number);
  if (address.is_loopback() && number != host && host != "localhost")
    text += fmt::format(
        ", not another one; if the store is on another host, set that host's address instead of "
        "the name, or correct '{}' in /etc/hosts",
        host);
  else if (why == no_answer || why == std::make_error_code(std::errc::timed_out).message())
    text += "; let TCP connections to this port pass (firewall)";
  return text;
}

}  // namespace

tcp::socket connect_to_store(asio::io_context& io, const std::string& host, int port,
                             std::chrono::nanoseconds timeout, const StoreIdentity& identity,
                             WaitWarnings warnings) {
  const auto name = endpoint_text(host, port);
  const auto deadline = Deadline::after(timeout);
  Backoff backoff;
  Deadline full_until;
  Problem problem;
  bool resolves = false;
  for (int attempts = 1;; ++attempts) {
    std::error_code unknown;
    const auto addresses = tcp::resolver(io).resolve(host, std::to_string(port),
                                                     tcp::resolver::numeric_service, unknown);
    if (unknown)
      problem = {.text =
                     fmt::format("the name '{}' does not resolve: {}", host, unknown.message())};
    else if (!std::exchange(resolves, true))
      problem = {};
    for (const auto& address : addresses) {
      const auto until = std::min(deadline.time(), Clock::now() + attempt_limit);
      try {
        return Attempt(io, name, identity, until).connect(address.endpoint());
      } catch (const Problem& why) {
        // An attempt that reached the time limit says less than the one before.
        if (!why.in_time && !problem.text.empty()) continue;
        problem = why;
        problem.text = at_address(host, address.endpoint().address(), why.text);
      }
    }
    if (const auto time = warnings.due(Clock::now()))
      default_logger()(
          LogLevel::warning,
          fmt::format("store {}: not reached after {} s ({} attempts), and tried again: {}", name,
                      time->count(), attempts, problem.text));
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
                             bool only_loopback, Accepted accepted, MakeRoom make_room,
                             Refused refused)
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
  const bool loopback = host.empty() && only_loopback;
  const bool everywhere = host == "*" || (host.empty() && !loopback);
  tcp::resolver::results_type addresses;
  if (!loopback && !everywhere) {
    using Resolver = tcp::resolver;
    addresses = Resolver(io).resolve(host, std::to_string(port),
                                     Resolver::passive | Resolver::numeric_service, error);
    if (error) failf(Errc::invalid_argument, "store server: host '{}': {}", host, error.message());
  }
  const auto listen = [&](int at) {
    port_ = at;
    if (loopback) listen_on_loopback(at, error);
    if (loopback && error && port == 0) listeners_.clear();  // Another program has it for IPv6.
    if (everywhere) listen_at({tcp::v6(), 0}, true, error);
    if (everywhere && error && error.value() != EADDRINUSE)  // A machine without IPv6.
      listen_at({tcp::v4(), 0}, false, error);
    for (const auto& address : addresses) listen_at(address.endpoint(), false, error);
    return listeners_.empty() ? error.value() : 0;
  };
  if (port == 0)
    (void)listen_at_any_port("store server", listen);
  else
    (void)listen(port);
  name_ = endpoint_text(loopback ? "localhost" : host.empty() ? "*" : host, port_);
  if (!listeners_.empty()) error = open(spare_, tcp::v4());
  if (!error) return;
  failf(no_descriptor(error)             ? Errc::resource_exhausted
        : error.value() == EADDRNOTAVAIL ? Errc::invalid_argument
                                         : Errc::backend,
        "store server: cannot listen on {}: {}", name_, error.message());
}

void StoreListener::listen_on_loopback(int port, std::error_code& error) {
  // A free port of IPv4 may be taken for IPv6.
  for (int attempts = port == 0 ? 16 : 1; attempts > 0; --attempts) {
    listeners_.clear();
    port_ = port;
    listen_at({asio::ip::address_v4::loopback(), 0}, false, error);
    if (error && error.value() != EADDRNOTAVAIL && error.value() != EAFNOSUPPORT) return;
    std::error_code of_v6;
    listen_at({asio::ip::address_v6::loopback(), 0}, false, of_v6);
    if (of_v6 && of_v6.value() != EADDRINUSE) return;  // A machine without IPv6.
    error = of_v6;
    if (!error) return;
  }
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

asio::ip::address plain(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

bool ends_here(const tcp::socket& socket) noexcept try {
  const auto is = [](const tcp::endpoint& a, const tcp::endpoint& b) {
    return a.port() == b.port() && plain(a.address()) == plain(b.address());
  };
  const auto end_of = [](int descriptor, auto get) {
    tcp::endpoint end;
    auto size = static_cast<socklen_t>(end.capacity());
    if (get(descriptor, end.data(), &size) != 0) return tcp::endpoint();
    end.resize(size);
    return end;
  };
  const auto local = socket.local_endpoint();
  const auto remote = socket.remote_endpoint();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    if (is(end_of(descriptor, ::getsockname), remote) &&
        is(end_of(descriptor, ::getpeername), local))
      return true;
  }
  return false;
} catch (const std::exception&) {  // The connection has ended, or there is no /proc or no memory.
  return false;
}

void tune(tcp::socket& socket, std::chrono::seconds limit) noexcept {
  const auto set = [&](int level, int option, int value) {
    // Options that the system does not know are ignored: the connection works without them.
    (void)::setsockopt(socket.native_handle(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  const auto seconds = static_cast<int>(limit.count());
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds * 3 / 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds / 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 7);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);  // Limit for unacknowledged data.
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
