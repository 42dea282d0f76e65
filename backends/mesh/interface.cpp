#include "interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::backend::mesh {
namespace {

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto comma = text.find(',');
    if (comma != 0) parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return parts;
}

std::string list(const std::vector<Interface>& all) {
  std::string text;
  for (const auto& i : all)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", i.name, i.address);
  return text.empty() ? "none" : text;
}

std::string wanted_interface(const std::string& args) {
  const char* text = std::getenv("TUTTI_IFNAME");
  return args.empty() && text != nullptr ? text : args;
}

}  // namespace

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    internal::failf(Errc::backend, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6})
    for (const auto* i = first; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      if ((i->ifa_flags & IFF_UP) == 0U) continue;
      std::array<char, NI_MAXHOST> text{};
      const auto length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(i->ifa_addr, static_cast<socklen_t>(length), text.data(), text.size(),
                        nullptr, 0, NI_NUMERICHOST) != 0)
        continue;
      found.push_back({i->ifa_name, text.data(), (i->ifa_flags & IFF_LOOPBACK) != 0U});
    }
  // A link-local address is the last choice.
  std::stable_partition(found.begin(), found.end(), [](const Interface& i) {
    return i.address.find('%') == std::string::npos;
  });
  return found;
}

Interface choose_interface(const std::vector<Interface>& all, std::string_view wanted,
                           std::string_view route) {
  const auto first_of = [&](const auto& fits) -> const Interface* {
    const auto it = std::ranges::find_if(all, fits);
    return it == all.end() ? nullptr : &*it;
  };
  if (wanted.empty()) {
    const Interface* found = nullptr;
    if (!route.empty()) found = first_of([&](const Interface& i) { return i.address == route; });
    if (found == nullptr) found = first_of([](const Interface& i) { return !i.loopback; });
    if (found == nullptr) found = first_of([](const Interface&) { return true; });
    if (found != nullptr) return *found;
    internal::failf(Errc::unsupported, "this machine has no network interface that is up");
  }
  const bool excludes = wanted.front() == '^';
  const bool exact = wanted.front() == '=';
  const auto names = split(excludes || exact ? wanted.substr(1) : wanted);
  const auto* found = first_of([&](const Interface& i) {
    const bool named = std::ranges::any_of(names, [&](std::string_view name) {
      return exact ? i.name == name : i.name.starts_with(name);
    });
    return named != excludes;
  });
  if (found != nullptr) return *found;
  internal::failf(Errc::invalid_argument,
                  "no interface matches '{}'; there are {}. 'eth' matches names that begin "
                  "with eth, '=eth0' only eth0, '^lo' names that do not begin with lo",
                  wanted, list(all));
}

Interface interface_of(const BackendInit& init) {
  return choose_interface(interfaces(), wanted_interface(init.args),
                          init.store->in_process() ? "127.0.0.1" : init.store->local_address());
}

std::string describe_interface() {
  try {
    const auto chosen = choose_interface(interfaces(), wanted_interface(""), "");
    return fmt::format("interface {} ({}), or the one that reaches the store\n", chosen.name,
                       chosen.address);
  } catch (const Error& error) {
    return fmt::format("{}\n", error.message());
  }
}

void write(internal::Writer& out, const Interface& interface) {
  out.text(interface.name).text(interface.address).u8(interface.loopback ? 1 : 0);
}

Interface read_interface(internal::Reader& in) {
  Interface interface;
  interface.name = in.text();
  interface.address = in.text();
  interface.loopback = in.u8() != 0;
  return interface;
}

void check_reachable(const internal::GroupNames& names, const internal::RankLocations& locations,
                     const std::vector<Interface>& chosen) {
  const auto size = static_cast<int>(chosen.size());
  for (int r = 0; r < size; ++r)
    for (int other = 0; other < size; ++other) {
      const auto& mine = chosen[static_cast<std::size_t>(r)];
      if (mine.loopback && !locations[static_cast<std::size_t>(r)]->shares_loopback(
                               *locations[static_cast<std::size_t>(other)]))
        internal::failf(Errc::unsupported,
                        "group '{}': rank {} would use {} ({}), which rank {} on another host "
                        "cannot reach; name the interface in TUTTI_IFNAME, or give a store address "
                        "that other hosts can reach",
                        names.group(), names(r), mine.name, mine.address, names(other));
    }
}

}  // namespace tutti::backend::mesh
