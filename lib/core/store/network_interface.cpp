#include "store/network_interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// Empty if there is no such text.
std::string numeric_text(const sockaddr& address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const bool found =
      ::getnameinfo(&address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return found ? text.data() : std::string();
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) fail(Errc::backend, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<NetworkInterface> found;
  for (const int family : {AF_INET, AF_INET6})
    for (const auto* i = first; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      if ((i->ifa_flags & IFF_UP) == 0U) continue;
      const auto length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      auto text = numeric_text(*i->ifa_addr, static_cast<socklen_t>(length));
      if (text.empty()) continue;
      found.push_back({i->ifa_name, std::move(text), (i->ifa_flags & IFF_LOOPBACK) != 0U});
    }
  // A link-local address is the last choice.
  std::stable_partition(found.begin(), found.end(), [](const NetworkInterface& i) {
    return i.address.find('%') == std::string::npos;
  });
  return found;
}

std::string address_towards(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* to = nullptr;
  if (::getaddrinfo(address.c_str(), "9", &hints, &to) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(to, ::freeaddrinfo);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* const generic = reinterpret_cast<sockaddr*>(&own);
  const int probe = ::socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool found = ::connect(probe, to->ai_addr, to->ai_addrlen) == 0 &&
                     ::getsockname(probe, generic, &length) == 0;
  if (probe >= 0) ::close(probe);
  return found ? numeric_text(*generic, length) : std::string();
}

std::string address_of_default_route() {
  return address_towards("192.0.2.1");  // Of no host: TEST-NET-1.
}

bool is_loopback(const std::string& address) {
  in6_addr v6{};
  if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  in_addr v4{};
  return ::inet_pton(AF_INET, address.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

}  // namespace tutti::internal
