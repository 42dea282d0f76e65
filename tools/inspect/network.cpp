#include "inspect/network.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/host.hpp"

namespace tutti::tool {
namespace {

using enum Level;

struct AddressOwner {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressOwner>;

/// The addresses of a host; null if it has none.
Addresses look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first) != 0) return {};
  return Addresses(first);
}

/// "eth0 192.0.2.2, lo 127.0.0.1" and whether there is one that is not loopback.
std::pair<std::string, bool> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::pair<std::string, bool> found;
  for (const auto* i = first; i != nullptr; i = i->ifa_next) {
    const int family = i->ifa_addr == nullptr ? AF_UNSPEC : i->ifa_addr->sa_family;
    if ((i->ifa_flags & IFF_UP) == 0U || (family != AF_INET && family != AF_INET6)) continue;
    std::array<char, NI_MAXHOST> text{};
    const auto length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(i->ifa_addr, static_cast<socklen_t>(length), text.data(), text.size(),
                      nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    found.first +=
        fmt::format("{}{} {}", found.first.empty() ? "" : ", ", i->ifa_name, text.data());
    found.second = found.second || (i->ifa_flags & IFF_LOOPBACK) == 0U;
  }
  return found;
}

/// The addresses of a host name as text; empty if it has none.
std::string resolve(const std::string& name) {
  const auto addresses = look_up(name, 0, 0);
  std::string list;
  for (const auto* i = addresses.get(); i != nullptr; i = i->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(i->ai_addr, i->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      list += fmt::format("{}{}", list.empty() ? "" : " ", text.data());
  }
  return list;
}

}  // namespace

void check_network(Checkup& checkup) {
  const auto [interfaces, beyond_host] = list_interfaces();
  if (beyond_host)
    checkup.add(ok, "network", "interfaces: " + interfaces);
  else
    checkup.add(warning, "network",
                fmt::format("{}; ranks on other hosts cannot reach this one",
                            interfaces.empty() ? "no interface is up" : "only " + interfaces),
                "For ranks on several hosts, bring up an interface (ip link set eth0 up)");
  const auto name = this_host().name;
  const auto addresses = resolve(name);
  checkup.add(
      addresses.empty() ? warning : ok, "network",
      fmt::format("host name {}: {}", name, addresses.empty() ? "no address" : addresses),
      addresses.empty() ? "Add it to /etc/hosts or DNS, or give ranks numeric addresses" : "");
  const char* master = std::getenv("MASTER_ADDR");
  if (master != nullptr && *master != '\0' && resolve(master).empty())
    checkup.add(problem, "network", fmt::format("MASTER_ADDR is {}, which has no address", master),
                "Set MASTER_ADDR to the name or number of rank 0's host");
}

void parts(Message& message, Attempt& attempt) {
  message(attempt.rank, attempt.address, attempt.port, attempt.failure);
}

OpenPort::OpenPort(const std::string& address) {
  const auto found = look_up(address, 0, AI_NUMERICHOST);
  if (found == nullptr) {
    why = fmt::format("'{}' is no address", address);
    return;
  }
  Descriptor opened(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  auto* generic = reinterpret_cast<sockaddr*>(&own);
  socklen_t length = sizeof own;
  std::array<char, NI_MAXSERV> service{};
  if (!opened || ::bind(opened.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(opened.get(), SOMAXCONN) != 0 ||
      ::getsockname(opened.get(), generic, &length) != 0 ||
      ::getnameinfo(generic, length, nullptr, 0, service.data(), service.size(), NI_NUMERICSERV) !=
          0) {
    why = fmt::format("{}: {}", address, std::strerror(errno));
    return;
  }
  port = std::atoi(service.data());
  socket = std::move(opened);
}

void connect_to_all(std::vector<Attempt>& attempts, std::chrono::milliseconds timeout) {
  std::vector<Descriptor> sockets;
  for (Attempt& attempt : attempts) {
    const auto found = look_up(attempt.address, attempt.port, AI_NUMERICHOST);
    const int family = found == nullptr ? AF_INET : found->ai_family;
    sockets.emplace_back(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (found == nullptr || !sockets.back())
      attempt.failure = found == nullptr ? "no such address" : std::strerror(errno);
    else if (::connect(sockets.back().get(), found->ai_addr, found->ai_addrlen) == 0)
      continue;
    else
      attempt.failure = std::strerror(errno);
  }
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].failure != std::strerror(EINPROGRESS)) continue;
    pollfd connecting{.fd = sockets[i].get(), .events = POLLOUT, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    int error = ETIMEDOUT;
    socklen_t length = sizeof error;
    if (::poll(&connecting, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) > 0)
      ::getsockopt(connecting.fd, SOL_SOCKET, SO_ERROR, &error, &length);
    attempts[i].failure = error == 0 ? "" : std::strerror(error);
  }
}

}  // namespace tutti::tool
