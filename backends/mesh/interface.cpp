#include "interface.hpp"

#include <algorithm>
#include <cstdlib>

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

Interface interface_of(const BackendInit& init, const internal::RankLocations& locations) {
  const auto all = internal::network_interfaces();
  const auto wanted = wanted_interface(init.args);
  const auto& here = *locations[static_cast<std::size_t>(init.rank)];
  auto route = init.store->in_process() ? "127.0.0.1" : here.address;
  if (route.empty()) route = internal::address_of_default_route();
  auto chosen = choose_interface(all, wanted, route);
  if (!wanted.empty() || !chosen.loopback) return chosen;
  // The store is on this host. A rank of another host has published the address from which it
  // reaches this host.
  const auto beyond = std::ranges::find_if(locations, [&](const auto& there) {
    return !there->shares_loopback(here) && !there->address.empty();
  });
  if (beyond == locations.end()) return chosen;
  return choose_interface(all, "", internal::address_towards((*beyond)->address));
}

std::string describe_interface() {
  try {
    const auto chosen = choose_interface(internal::network_interfaces(), wanted_interface(""),
                                         internal::address_of_default_route());
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
