#include "values/host_identity.hpp"

#include <sys/socket.h>
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
#include <fmt/ranges.h>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

std::string target(const char* link) {
  std::array<char, 64> text{};
  const auto n = ::readlink(link, text.data(), text.size() - 1);
  return n > 0 ? text.data() : "unknown";
}

[[noreturn]] void fail_identity() {
  failf(Errc::resource_exhausted, "cannot read the identity of this host: {}",
        std::strerror(errno));
}

bool is_short_of_descriptors() {
  return errno == EMFILE || errno == ENFILE;
}

bool sees_peers() {
  std::array<int, 2> ends{};
  errno = 0;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    if (is_short_of_descriptors()) fail_identity();
    return false;
  }
  const int process = peer_process(ends[0]);
  const bool is_short = process < 0 && is_short_of_descriptors();
  for (const int file : {ends[0], ends[1], process})
    if (file >= 0) ::close(file);
  if (is_short) fail_identity();
  return process >= 0;
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
                        .user = std::to_string(::geteuid()),
                        .sees_peers = sees_peers()};
  errno = 0;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  file.exceptions(std::ios::badbit);  // Otherwise lack of memory reads as an empty text.
  file >> identity.boot;
  if (is_short_of_descriptors()) fail_identity();
  return identity;
}

int peer_process(int socket) noexcept {
#ifdef SO_PEERPIDFD
  constexpr int option = SO_PEERPIDFD;
#else
  constexpr int option = 77;  // The same number on every processor with generic socket options.
#endif
  int process = -1;
  socklen_t length = sizeof process;
  return ::getsockopt(socket, SOL_SOCKET, option, &process, &length) == 0 ? process : -1;
}

std::string difference(const HostIdentity& a, const HostIdentity& b) {
  if (a.boot != b.boot) return fmt::format("the boot id ({} and {})", a.boot, b.boot);
  std::vector<std::string> found;
  const auto compare = [&](const char* what, std::string HostIdentity::*part, const char* remedy) {
    if (a.*part != b.*part)
      found.push_back(fmt::format("{} ({} and {}; {})", what, a.*part, b.*part, remedy));
  };
  compare("the network namespace", &HostIdentity::network,
          "containers of one pod share it; docker: --network=host");
  if (!a.sees_peers || !b.sees_peers)
    compare("the process namespace", &HostIdentity::processes,
            "pod: shareProcessNamespace: true; docker: --pid=host");
  compare("the user namespace", &HostIdentity::users,
          "pod: hostUsers: true; docker: --userns=host");
  compare("the user", &HostIdentity::user, "start all ranks as one user");
  return fmt::format("{}", fmt::join(found, " and "));
}

std::string text_of(const HostIdentity& host) {
  return fmt::format("{} {} {} {} {}", host.boot, host.network,
                     host.sees_peers ? "any" : host.processes, host.users, host.user);
}

bool has_named_hosts() noexcept {
  const char* list = std::getenv("TUTTI_HOSTS");
  return list != nullptr && *list != '\0';
}

std::string host_of(int rank) {
  const char* list = std::getenv("TUTTI_HOSTS");
  if (!has_named_hosts()) return text_of(host_identity());
  const auto names = names_in(list);
  if (std::ranges::count(names, "") != 0)
    failf(Errc::invalid_argument,
          "TUTTI_HOSTS is '{}'; list a name for each rank, separated by commas", list);
  return "TUTTI_HOSTS " + names[static_cast<std::size_t>(rank) % names.size()];
}

}  // namespace tutti::internal
