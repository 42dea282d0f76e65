#include "store/tcp_connect.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <random>
#include <thread>

#include <tutti/deadline.hpp>

#include "store/protocol.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

/// How long one attempt may take: a server that stopped must not use up all the time there is.
constexpr auto attempt_limit = 15s;
/// How long a server that is full is asked again before its caller is told.
constexpr auto full_limit = 5s;

/// Pauses between attempts: longer and longer, and not the same for all ranks.
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

/// Why an attempt failed that may be repeated.
struct Problem {
  std::string text;
  bool full = false;    ///< The server has no room.
  bool in_time = true;  ///< Not because the time was up.
};

/// False when the time is up.
bool wait_for(const Descriptor& socket, short events, Deadline deadline) {
  for (;;) {
    pollfd ready{socket.fd(), events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline.remaining(), 1h));
    const int n = ::poll(&ready, 1, static_cast<int>(left.count()));
    if (n > 0) return true;
    if (n == 0 && deadline.expired()) return false;
    if (n < 0 && errno != EINTR) return true;  // The next call on it will say what is wrong.
  }
}

/// "48 54 54 50 'HTTP'": what came instead of a greeting.
std::string describe(std::span<const std::byte> bytes) {
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
  Attempt(const std::string& name, const SocketAddress& address, Deadline deadline)
      : name_(name), deadline_(deadline) {
    socket_ = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket_) {
      if (errno == EMFILE || errno == ENFILE)
        failf(Errc::resource_exhausted, "store {}: cannot make a socket: {}", name,
              system_text(errno));
      throw Problem{system_text(errno)};
    }
    tune(socket_);
    if (::connect(socket_.fd(), address.get(), address.size) != 0 && errno != EINPROGRESS)
      throw Problem{system_text(errno)};
    if (!wait_for(socket_, POLLOUT, deadline_))
      throw Problem{"no answer to connecting", false, false};
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) throw Problem{system_text(error)};
  }

  Descriptor greet() && {
    const auto hello = encode_greeting(client_magic, {});
    // The first bytes on a new connection: they fit.
    if (::send(socket_.fd(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(hello.size()))
      throw Problem{system_text(errno)};
    std::array<std::byte, greeting_bytes> bytes;
    read(bytes, true);
    const auto greeting = decode_greeting(bytes);
    if (greeting.kind == 0) {
      if (greeting.version != store_version || greeting.bytes != 0)
        failf(Errc::unsupported, "store {}: it speaks version {} of its protocol, this library {}",
              name_, greeting.version, store_version);
      return std::move(socket_);
    }
    Bytes text(std::min<std::size_t>(greeting.bytes, max_refusal_bytes));
    read(text, false);
    const std::string why(reinterpret_cast<const char*>(text.data()), text.size());
    if (greeting.kind == 1 + static_cast<int>(Errc::resource_exhausted)) throw Problem{why, true};
    failf(Errc::unsupported, "store {} refused this client: {}", name_, why);
  }

 private:
  void read(std::span<std::byte> bytes, bool greeting) {
    std::size_t got = 0;
    while (got < bytes.size()) {
      if (!wait_for(socket_, POLLIN, deadline_))
        throw Problem{"connected, but it did not answer the greeting; is it a store of tutti?",
                      false, false};
      const auto n = ::recv(socket_.fd(), bytes.data() + got, bytes.size() - got, 0);
      if (n == 0) throw Problem{"connected, but the other side closed the connection"};
      if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) continue;
        throw Problem{system_text(errno)};
      }
      got += static_cast<std::size_t>(n);
      if (!greeting || may_greet(server_magic, bytes.first(got))) continue;
      // On loopback a socket may meet itself, when the port it asks for is the one it was given.
      if (may_greet(client_magic, bytes.first(got))) throw Problem{"connected to itself"};
      failf(Errc::invalid_argument,
            "store {}: what answers there does not speak tutti's store protocol; first bytes: {}",
            name_, describe(bytes.first(got)));
    }
  }

  const std::string& name_;
  Deadline deadline_;
  Descriptor socket_;
};

}  // namespace

Descriptor connect_to_store(const std::string& host, int port, std::chrono::nanoseconds timeout) {
  const auto name = endpoint_text(host, port);
  const auto deadline = Deadline::after(timeout);
  Backoff backoff;
  Deadline full_until;
  Problem problem;
  for (int attempts = 1;; ++attempts) {
    std::string unknown;
    const auto addresses = resolve(host, port, false, unknown);
    if (addresses.empty()) problem = {.text = unknown};
    for (const auto& address : addresses) {
      const auto until = std::min(deadline.time(), Clock::now() + attempt_limit);
      try {
        return Attempt(name, address, Deadline::at(until)).greet();
      } catch (const Problem& why) {
        // An attempt that was cut short by the end says less than the one before.
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

}  // namespace tutti::internal
