#include "tcp_peer.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto patience = 10s;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

int listen_anywhere(int& port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto address = loopback(0);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || ::bind(listener, generic, size) != 0 || ::listen(listener, 64) != 0 ||
      ::getsockname(listener, generic, &size) != 0)
    throw std::runtime_error("cannot listen");
  port = ntohs(address.sin_port);
  return listener;
}

}  // namespace

TcpPeer::TcpPeer(int descriptor) : descriptor_(descriptor) {
  const int yes = 1;
  (void)::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

TcpPeer TcpPeer::to(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = loopback(port);
  if (descriptor < 0 ||
      ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    throw std::runtime_error("cannot connect to port " + std::to_string(port));
  return TcpPeer(descriptor);
}

TcpPeer::TcpPeer(TcpPeer&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

TcpPeer::~TcpPeer() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool TcpPeer::wait(short events, std::chrono::milliseconds time) const {
  pollfd ready{descriptor_, events, 0};
  return ::poll(&ready, 1, static_cast<int>(time.count())) > 0;
}

void TcpPeer::send(std::span<const std::byte> bytes) {
  const auto until = Clock::now() + patience;
  while (!bytes.empty()) {
    bytes = bytes.subspan(send_some(bytes));
    if (bytes.empty()) return;
    if (Clock::now() > until) throw std::runtime_error("the peer does not read");
    (void)wait(POLLOUT, 100ms);
  }
}

void TcpPeer::send(std::string_view text) {
  send(std::as_bytes(std::span(text)));
}

std::size_t TcpPeer::send_some(std::span<const std::byte> bytes) {
  const auto n = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return static_cast<std::size_t>(n);
  if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
  throw std::runtime_error("the peer is gone");
}

std::vector<std::byte> TcpPeer::read(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  std::size_t got = 0;
  const auto until = Clock::now() + patience;
  while (got < bytes) {
    if (Clock::now() > until || !wait(POLLIN, patience))
      throw std::runtime_error("the peer says nothing");
    const auto n = ::recv(descriptor_, all.data() + got, bytes - got, 0);
    if (n <= 0) throw std::runtime_error("the peer has closed the connection");
    got += static_cast<std::size_t>(n);
  }
  return all;
}

std::string TcpPeer::read_to_end() {
  std::string all;
  std::array<char, 4096> part;
  for (;;) {
    if (!wait(POLLIN, patience)) throw std::runtime_error("the peer does not close");
    const auto n = ::recv(descriptor_, part.data(), part.size(), 0);
    if (n <= 0) return all;
    all.append(part.data(), static_cast<std::size_t>(n));
  }
}

bool TcpPeer::closed_within(std::chrono::milliseconds time) {
  const auto until = Clock::now() + time;
  std::array<char, 65536> part;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0 || !wait(POLLIN, left)) return false;
    if (::recv(descriptor_, part.data(), part.size(), 0) <= 0) return true;
  }
}

void TcpPeer::reset_on_close() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void TcpPeer::end_of_sending() {
  (void)::shutdown(descriptor_, SHUT_WR);
}

TcpScript::TcpScript(std::function<void(TcpPeer&, int)> serve)
    : listener_(listen_anywhere(port_)), serve_(std::move(serve)), thread_([this] {
        for (int connection = 0;; ++connection) {
          const int descriptor = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
          if (descriptor < 0) return;
          TcpPeer peer(descriptor);
          try {
            serve_(peer, connection);
          } catch (const std::runtime_error&) {  // The client has left: its test checks why.
          }
        }
      }) {}

TcpScript::~TcpScript() {
  (void)::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
}

int free_port() {
  int port = 0;
  ::close(listen_anywhere(port));
  return port;
}

}  // namespace tutti::test
