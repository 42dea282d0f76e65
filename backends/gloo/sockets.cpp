#include "sockets.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

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

std::vector<int> descriptors() {
  std::vector<int> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored))
    all.push_back(std::atoi(entry.path().filename().c_str()));
  return all;
}

/// Whether `descriptor` is an epoll that watches one of `watched`.
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

Sockets Sockets::find(std::span<const sockaddr_storage> addresses) {
  Sockets found;
  const auto all = descriptors();
  for (const int descriptor : all) {
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t length = sizeof own;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    length = sizeof peer;
    const bool connected =
        ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    const bool mine = std::ranges::any_of(
        addresses, [&](const sockaddr_storage& address) { return same_address(own, address); });
    if (!mine) continue;
    close_on_exec(descriptor);
    if (connected) found.descriptors_.push_back(descriptor);
  }
  for (const int descriptor : all)
    if (watches(descriptor, found.descriptors_)) close_on_exec(descriptor);
  return found;
}

void Sockets::shut_down() const noexcept {
  for (const int descriptor : descriptors_) ::shutdown(descriptor, SHUT_RDWR);
}

void Sockets::drain() const noexcept {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  const auto sum = [&](unsigned long request) {
    std::int64_t bytes = 0;
    for (const int descriptor : descriptors_)
      if (int n = 0; ::ioctl(descriptor, request, &n) == 0) bytes += n;
    return bytes;
  };
  std::int64_t before = -1;
  auto moved = Clock::now();
  for (auto pause = 20us;; pause = std::min<std::chrono::microseconds>(pause * 2, 2ms)) {
    const auto unconfirmed = sum(SIOCOUTQ);
    if (unconfirmed == 0) return;
    if (unconfirmed != before) moved = Clock::now();
    before = unconfirmed;
    // What is only unconfirmed is on its way; a delayed acknowledgement takes 40 ms.
    const auto patience = sum(SIOCOUTQNSD) == 0 ? 50ms : 1000ms;
    if (Clock::now() - moved > patience) return;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tutti::backend::gloo
