#include "sockets.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "mesh/segment_filter.hpp"

namespace tutti::backend::gloo {
namespace {

bool same_address(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b);
    return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b);
  return x.sin6_port == y.sin6_port &&
         std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
}

void close_on_exec(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFD);
  if (flags >= 0) ::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC);
}

/// True if `descriptor` is an epoll instance that watches one of `watched`.
bool watches(int descriptor, const std::vector<int>& watched) {
  std::error_code ignored;
  const auto number = std::to_string(descriptor);
  const auto target = std::filesystem::read_symlink("/proc/self/fd/" + number, ignored);
  if (target != "anon_inode:[eventpoll]") return false;
  std::ifstream info("/proc/self/fdinfo/" + number);
  for (std::string word; info >> word;) {
    int watched_one = -1;
    if (word == "tfd:" && info >> watched_one && std::ranges::count(watched, watched_one) != 0)
      return true;
  }
  return false;
}

}  // namespace

void admit_only(std::uint64_t token, std::span<const sockaddr_storage> listeners) {
  // The number of 8-byte fields in a frame's header. The token's field depends on Gloo's version.
  constexpr std::uint32_t fields = 7;
  std::array<std::uint32_t, 2> halves{};
  std::memcpy(halves.data(), &token, sizeof token);
  using mesh::filter_step;
  auto program = mesh::pass_without_data();
  for (std::uint32_t field = 0; field < fields; ++field) {
    program.push_back(filter_step(BPF_LD | BPF_W | BPF_IND, field * 8));
    program.push_back(filter_step(BPF_JMP | BPF_JEQ | BPF_K, ntohl(halves[0]), 0, 3));
    program.push_back(filter_step(BPF_LD | BPF_W | BPF_IND, field * 8 + 4));
    program.push_back(filter_step(BPF_JMP | BPF_JEQ | BPF_K, ntohl(halves[1]), 0, 1));
    program.push_back(filter_step(BPF_RET | BPF_K, mesh::pass_segment));
  }
  program.push_back(filter_step(BPF_RET | BPF_K, mesh::drop_segment));
  for (const int descriptor : mesh::descriptors_of_process()) {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        std::ranges::any_of(listeners,
                            [&](const sockaddr_storage& a) { return same_address(own, a); }))
      (void)mesh::filter_segments(descriptor, program);
  }
}

void Sockets::admit_all() const noexcept {
  for (const int descriptor : descriptors_)
    if (descriptor >= 0) mesh::pass_all_segments(descriptor);
}

Sockets Sockets::find(std::span<const sockaddr_storage> own_ends,
                      std::span<const sockaddr_storage> their_ends) {
  Sockets found;
  found.descriptors_.resize(own_ends.size(), -1);
  std::vector<int> originals(own_ends.size(), -1);  // Gloo's own, which it closes.
  std::vector<bool> connected(own_ends.size());     // To any peer.
  const auto all = mesh::descriptors_of_process();
  for (const int descriptor : all) {
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t length = sizeof own;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    if (std::ranges::none_of(own_ends,
                             [&](const sockaddr_storage& a) { return same_address(own, a); }))
      continue;
    close_on_exec(descriptor);
    length = sizeof peer;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    // Compares both addresses, because all connections that one listener accepted have the same
    // local one.
    for (std::size_t i = 0; i < own_ends.size(); ++i) {
      if (!same_address(own, own_ends[i])) continue;
      connected[i] = true;
      if (same_address(peer, their_ends[i])) originals[i] = descriptor;
    }
  }
  for (std::size_t i = own_ends.size(); i-- > 0;)
    if (connected[i] && originals[i] < 0) found.relayed_ = static_cast<int>(i);
  for (const int descriptor : all)
    if (watches(descriptor, originals)) close_on_exec(descriptor);
  // After the loop: a duplicate may get a descriptor number that the loop has not yet checked.
  for (std::size_t i = 0; i < originals.size(); ++i)
    if (originals[i] >= 0) found.descriptors_[i] = ::fcntl(originals[i], F_DUPFD_CLOEXEC, 0);
  return found;
}

Sockets::~Sockets() {
  for (const int descriptor : descriptors_)
    if (descriptor >= 0) ::close(descriptor);
}

void Sockets::shut_down() const noexcept {
  for (const int descriptor : descriptors_) ::shutdown(descriptor, SHUT_RDWR);
}

}  // namespace tutti::backend::gloo
