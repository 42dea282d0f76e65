#include "sockets.hpp"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <thread>

namespace tutti::backend::mesh {

namespace {

void set(int descriptor, int level, int option, int value) noexcept {
  ::setsockopt(descriptor, level, option, &value, sizeof value);
}

}  // namespace

void probe_idle(int descriptor, std::chrono::nanoseconds time) noexcept {
  const auto probe = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(time / 10).count());
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 3 * probe);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, probe);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 7);
}

void end_unanswered(int descriptor, std::chrono::nanoseconds time) noexcept {
  probe_idle(descriptor, time);
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds));
}

std::optional<std::chrono::milliseconds> unanswered(int descriptor) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      (info.tcpi_probes < 2 && (info.tcpi_unacked == 0 || info.tcpi_retransmits < 2)))
    return std::nullopt;
  return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

void use_reno(int descriptor) noexcept {
  constexpr std::string_view name = "reno";
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size());
}

void drain(std::span<const int> descriptors) noexcept {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  const auto sum = [&](unsigned long request) {
    std::int64_t bytes = 0;
    for (const int descriptor : descriptors)
      if (int n = 0; ::ioctl(descriptor, request, &n) == 0) bytes += n;
    return bytes;
  };
  // A peer that leaves too waits for these acknowledgements, which the kernel may delay by 40 ms.
  const int now = 1;
  for (const int descriptor : descriptors)
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
  std::int64_t before = -1;
  auto moved = Clock::now();
  for (auto pause = 20us;; pause = std::min<std::chrono::microseconds>(pause * 2, 2ms)) {
    const auto unconfirmed = sum(SIOCOUTQ);
    if (unconfirmed == 0) return;
    if (unconfirmed != before) moved = Clock::now();
    before = unconfirmed;
    // Data that was sent needs only an acknowledgement, which may be delayed by 40 ms.
    const auto patience = sum(SIOCOUTQNSD) == 0 ? 50ms : 1000ms;
    if (Clock::now() - moved > patience) return;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tutti::backend::mesh
