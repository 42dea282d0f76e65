#include "values/host_identity.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

std::string target(const char* link) {
  std::array<char, 64> text{};
  const auto n = ::readlink(link, text.data(), text.size() - 1);
  return n > 0 ? text.data() : "unknown";
}

std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  for (;;) {
    const auto comma = list.find(',');
    names.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return names;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

HostIdentity host_identity() {
  HostIdentity identity{.boot = "unknown",
                        .network = target("/proc/self/ns/net"),
                        .processes = target("/proc/self/ns/pid"),
                        .users = target("/proc/self/ns/user"),
                        .user = std::to_string(::geteuid())};
  errno = 0;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  file.exceptions(std::ios::badbit);  // Otherwise lack of memory reads as an empty text.
  file >> identity.boot;
  if (errno == EMFILE || errno == ENFILE)
    failf(Errc::resource_exhausted, "cannot read the identity of this host: {}",
          std::strerror(errno));
  return identity;
}

std::string difference(const HostIdentity& a, const HostIdentity& b) {
  const auto differs = [](const char* what, const std::string& x, const std::string& y) {
    return x == y ? std::string() : fmt::format("{} ({} and {})", what, x, y);
  };
  for (const auto& text :
       {differs("the boot id", a.boot, b.boot),
        differs("the network namespace", a.network, b.network),
        differs("the process namespace", a.processes, b.processes),
        differs("the user namespace", a.users, b.users), differs("the user", a.user, b.user)})
    if (!text.empty()) return text;
  return {};
}

bool has_named_hosts() noexcept {
  const char* list = std::getenv("TUTTI_HOSTS");
  return list != nullptr && *list != '\0';
}

std::string host_of(int rank) {
  const char* list = std::getenv("TUTTI_HOSTS");
  if (!has_named_hosts()) {
    const auto own = host_identity();
    return fmt::format("{} {} {} {} {}", own.boot, own.network, own.processes, own.users, own.user);
  }
  const auto names = names_in(list);
  if (std::ranges::count(names, "") != 0)
    failf(Errc::invalid_argument,
          "TUTTI_HOSTS is '{}'; list a name for each rank, separated by commas", list);
  return "TUTTI_HOSTS " + names[static_cast<std::size_t>(rank) % names.size()];
}

}  // namespace tutti::internal
