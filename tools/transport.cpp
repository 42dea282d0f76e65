#include "transport.hpp"

#include <ifaddrs.h>
#include <netdb.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <tutti/store.hpp>

namespace tutti::tool {
namespace {

/// The interface that has this address; empty for none.
std::string interface_of(std::string_view address) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(first, freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto size =
        static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
            0 &&
        address == text.data())
      return entry->ifa_name;
  }
  return {};
}

}  // namespace

std::string transport_of(const BackendChoice& backend, const GroupOptions& group) {
  if (backend.entry->name != "gloo" || group.size == 1) return {};
  // The rule of docs/gloo.md: what was asked for, else the way to the store.
  std::string name = backend.args;
  if (const char* wanted = std::getenv("TUTTI_IFNAME"); name.empty() && wanted != nullptr)
    name = wanted;
  if (name.starts_with('=')) name.erase(0, 1);
  if (name.empty() && group.store != nullptr) name = interface_of(group.store->local_address());
  return name.empty() ? "tcp" : "tcp/" + name;
}

}  // namespace tutti::tool
