#include "gate.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "mesh/segment_filter.hpp"
#include "values/fail.hpp"

namespace tutti::backend::ucx {
namespace {

/// The end of a socket, and its bytes as UCX packs them in the address of a worker.
struct End {
  std::string text;
  std::string ip;
  std::string port;
};

std::optional<End> end_of(const sockaddr_storage& address) {
  const auto of = [&](const void* ip, std::size_t bytes, in_port_t port) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    ::inet_ntop(address.ss_family, ip, text.data(), text.size());
    return End{fmt::format("{}:{}", text.data(), ntohs(port)),
               std::string(static_cast<const char*>(ip), bytes),
               std::string(reinterpret_cast<const char*>(&port), sizeof port)};
  };
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return of(&four.sin_addr, sizeof four.sin_addr, four.sin_port);
  }
  if (address.ss_family != AF_INET6) return std::nullopt;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return of(&six.sin6_addr, sizeof six.sin6_addr, six.sin6_port);
}

int option(int descriptor, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(descriptor, level, name, &value, &length) == 0 ? value : -1;
}

std::optional<End> own_end(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return end_of(address);
}

/// The other end; of a socket that still connects too, unlike that of getpeername().
std::optional<End> other_end(int descriptor) {
  sockaddr_storage address{};
  // The kernel refuses a length above that of the address.
  socklen_t length = option(descriptor, SOL_SOCKET, SO_DOMAIN) == AF_INET6 ? sizeof(sockaddr_in6)
                                                                           : sizeof(sockaddr_in);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERNAME, &address, &length) != 0) return {};
  return end_of(address);
}

bool has(const Gate::Addresses& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

/// The sockets of this process: those that listen, or the others.
template <typename Take>
void for_each_tcp_socket(bool listening, const Take& take) {
  for (const int descriptor : mesh::descriptors_of_process())
    if (option(descriptor, SOL_SOCKET, SO_ACCEPTCONN) == (listening ? 1 : 0) &&
        option(descriptor, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP)
      if (const auto own = own_end(descriptor)) take(descriptor, *own);
}

std::vector<sock_filter> without_data() {
  auto steps = mesh::pass_without_data();
  steps.push_back(mesh::filter_step(BPF_RET | BPF_K, mesh::drop_segment));
  return steps;
}

}  // namespace

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("::1:");
}

Gate::Gate(const std::function<std::string()>& make) {
  // Other workers of this process make their listeners before or after this one.
  static std::mutex making;
  const std::lock_guard lock(making);
  Addresses before;
  for_each_tcp_socket(true, [&](int, const End& own) { before.push_back(own.text); });
  const auto worker = make();
  const auto filter = without_data();
  for_each_tcp_socket(true, [&](int descriptor, const End& own) {
    // Another thread may have made a listener at the same time.
    if (has(before, own.text) || !contains(worker, own.port) ||
        (!is_loopback(own.text) && !contains(worker, own.ip)))
      return;
    listeners_.push_back(own.text);
    if (const int error = mesh::filter_segments(descriptor, filter); error != 0)
      internal::failf(
          Errc::unsupported,
          "ucx: the kernel cannot keep unauthenticated peers from {}, where UCX listens ({}); use "
          "the backend gloo, or transports without tcp, \"ucx:rc\"",
          own.text, std::strerror(error));
  });
  refuse_others();  // No peer knows the address yet.
}

Gate::Addresses Gate::connected_to(const Addresses& listeners) {
  Addresses own_ends;
  for_each_tcp_socket(false, [&](int descriptor, const End& own) {
    const auto other = other_end(descriptor);
    if (other && has(listeners, other->text)) own_ends.push_back(own.text);
  });
  return own_ends;
}

bool Gate::has_lost(const Addresses& listeners) {
  bool lost = false;
  for_each_tcp_socket(false, [&](int descriptor, const End&) {
    const auto other = other_end(descriptor);
    pollfd end{descriptor, POLLRDHUP, 0};
    lost = lost || (other && has(listeners, other->text) && ::poll(&end, 1, 0) > 0);
  });
  return lost;
}

Gate::Addresses Gate::admit(Addresses announced) {
  for_each_tcp_socket(false, [&](int descriptor, const End& own) {
    if (!has(listeners_, own.text)) return;
    const auto other = other_end(descriptor);
    if (!other || std::erase(announced, other->text) == 0) return;
    mesh::pass_all_segments(descriptor);
    admitted_.push_back(other->text);
  });
  return announced;
}

bool Gate::shut() const {
  const auto drop = mesh::filter_step(BPF_RET | BPF_K, mesh::drop_segment);
  bool empty = true;
  for_each_tcp_socket(true, [&](int descriptor, const End& own) {
    if (!has(listeners_, own.text)) return;
    (void)mesh::filter_segments(descriptor, {&drop, 1});
    pollfd waiting{descriptor, POLLIN, 0};
    empty = empty && ::poll(&waiting, 1, 0) == 0;
  });
  return empty;
}

void Gate::refuse_others() const {
  const auto filter = without_data();
  for_each_tcp_socket(false, [&](int descriptor, const End& own) {
    if (!has(listeners_, own.text)) return;
    const auto other = other_end(descriptor);
    if (other && has(admitted_, other->text)) return;
    // A connection of the first microseconds has no filter, and perhaps data.
    (void)mesh::filter_segments(descriptor, filter);
    std::array<char, 4096> data;
    while (::recv(descriptor, data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    ::shutdown(descriptor, SHUT_RDWR);
  });
}

}  // namespace tutti::backend::ucx
