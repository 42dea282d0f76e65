#include "store/tcp_socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <system_error>

#include <fmt/format.h>

namespace tutti::internal {

void Descriptor::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Descriptor::shut_down() noexcept {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  reset();
}

std::vector<SocketAddress> resolve(const std::string& host, int port, bool listen,
                                   std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                  std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    problem = ::gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const auto* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    if (entry->ai_addrlen > sizeof(address.storage)) continue;
    const auto* from = reinterpret_cast<const char*>(entry->ai_addr);
    std::copy(from, from + entry->ai_addrlen, reinterpret_cast<char*>(&address.storage));
    address.size = entry->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) problem = "it has no address";
  return addresses;
}

std::string host_of(const SocketAddress& address) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(address.get(), address.size, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return {};
  const std::string text = host.data();
  constexpr std::string_view mapped = "::ffff:";  // IPv4 through an IPv6 socket.
  return text.starts_with(mapped) && text.find('.') != std::string::npos
             ? text.substr(mapped.size())
             : text;
}

int port_of(const SocketAddress& address) {
  // The port of both families lies at the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(address.get())->sin_port);
}

SocketAddress local_end(const Descriptor& socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getsockname(socket.fd(), address.get(), &address.size) != 0) address.size = 0;
  return address;
}

SocketAddress remote_end(const Descriptor& socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getpeername(socket.fd(), address.get(), &address.size) != 0) address.size = 0;
  return address;
}

void tune(const Descriptor& socket) noexcept {
  const auto set = [&](int level, int option, int value) {
    // What a system does not know is no loss: the connection works without it.
    (void)::setsockopt(socket.fd(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);  // The same for what was sent; in milliseconds.
}

std::string endpoint_text(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::string system_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace tutti::internal
