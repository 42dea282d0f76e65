#include "gate.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "listen_hook.hpp"
#include "mesh/segment_filter.hpp"
#include "values/fail.hpp"

namespace tutti::backend::ucx {
namespace {

/// An address and its port as text; empty if it is not of IP.
std::string text_of(const sockaddr_storage& address) {
  const bool four = address.ss_family == AF_INET;
  if (!four && address.ss_family != AF_INET6) return {};
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const void* const ip = four ? static_cast<const void*>(&v4.sin_addr) : &v6.sin6_addr;
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.ss_family, ip, text.data(), text.size());
  return fmt::format("{}:{}", text.data(), ntohs(four ? v4.sin_port : v6.sin6_port));
}

int option(int descriptor, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(descriptor, level, name, &value, &length) == 0 ? value : -1;
}

std::string own_end(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return text_of(address);
}

/// The other end; of a socket that still connects too, unlike that of getpeername().
std::string other_end(int descriptor) {
  sockaddr_storage address{};
  // The kernel refuses a length above that of the address.
  socklen_t length = option(descriptor, SOL_SOCKET, SO_DOMAIN) == AF_INET6 ? sizeof(sockaddr_in6)
                                                                           : sizeof(sockaddr_in);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERNAME, &address, &length) != 0) return {};
  return text_of(address);
}

bool has(const Gate::Addresses& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

/// Keeps a socket while it is looked at: the program may close its descriptor, and open another
/// socket under the same number.
class Kept {
 public:
  explicit Kept(int descriptor) noexcept
      : copy_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), own_(errno == EMFILE ? descriptor : -1) {}
  ~Kept() {
    if (copy_ >= 0) ::close(copy_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  int descriptor() const noexcept { return copy_ >= 0 ? copy_ : own_; }

 private:
  int copy_, own_;  // The own one serves if the process may have no other.
};

bool is_tcp(int descriptor) {
  return option(descriptor, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

/// The sockets of this process that have a port: those that listen, or the others. Another thread
/// that calls connect() sets the other end before the own one. False if /proc does not show them.
template <typename Take>
bool for_each_tcp_socket(bool listening, const Take& take) {
  const auto all = mesh::descriptors_of_process();
  for (const int number : all) {
    if (!is_tcp(number)) continue;
    const Kept kept(number);
    const int descriptor = kept.descriptor();
    if (!is_tcp(descriptor) || option(descriptor, SOL_SOCKET, SO_ACCEPTCONN) != (listening ? 1 : 0))
      continue;
    if (const auto own = own_end(descriptor); !own.ends_with(":0")) take(descriptor, own);
  }
  return !all.empty();
}

thread_local Gate* gate_of_this_thread = nullptr;

std::vector<sock_filter> without_data() {
  auto steps = mesh::pass_without_data();
  steps.push_back(mesh::filter_step(BPF_RET | BPF_K, mesh::drop_segment));
  return steps;
}

[[noreturn]] void refuse(std::string_view why) {
  internal::failf(Errc::unsupported,
                  "ucx: {}, so unauthenticated peers could connect; use the backend tcp, or "
                  "transports without tcp, \"ucx:rc\"",
                  why);
}

}  // namespace

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("::1:");
}

int before_listen(int descriptor) noexcept {
  if (gate_of_this_thread == nullptr) return 0;
  try {
    gate_of_this_thread->guard(descriptor);
    return 0;
  } catch (...) {
    return -1;
  }
}

Gate::Gate(const Transports& transports, const std::function<void()>& make) {
  static const bool hooked = call_before_listen("libucs.so.0", before_listen);
  if (!hooked && has_tcp(transports))
    refuse("libucs.so.0 of this UCX does not call listen() through a table of the linker");
  gate_of_this_thread = this;
  try {
    make();
    gate_of_this_thread = nullptr;
  } catch (...) {
    gate_of_this_thread = nullptr;
    if (error_ == 0) throw;
    refuse(fmt::format("the kernel cannot filter UCX's ports ({})", std::strerror(error_)));
  }
  if (!listeners_.empty() && !filter_listeners(without_data()))
    refuse("/proc/self/fd does not show UCX's ports, or the kernel cannot filter them");
}

/// UCX does not listen if this throws.
void Gate::guard(int descriptor) {
  if (!is_tcp(descriptor)) return;
  listeners_.push_back(own_end(descriptor));
  const auto drop = mesh::filter_step(BPF_RET | BPF_K, mesh::drop_segment);
  error_ = mesh::filter_segments(descriptor, {&drop, 1});
  if (error_ != 0) throw std::system_error(error_, std::generic_category());
}

/// UCX may have closed some of the listeners (UCX_UNIFIED_MODE).
bool Gate::filter_listeners(std::span<const sock_filter> steps) const {
  bool filtered = true;
  const bool shown = for_each_tcp_socket(true, [&](int descriptor, const std::string& own) {
    if (has(listeners_, own)) filtered = mesh::filter_segments(descriptor, steps) == 0 && filtered;
  });
  return shown && filtered;
}

std::map<int, Gate::Addresses> Gate::connected_to(const Ranks& listeners) {
  std::map<int, Addresses> own_ends;
  for_each_tcp_socket(false, [&](int descriptor, const std::string& own) {
    if (const auto at = listeners.find(other_end(descriptor)); at != listeners.end())
      own_ends[at->second].push_back(own);
  });
  return own_ends;
}

std::optional<int> Gate::lost(const Ranks& listeners) {
  std::optional<int> rank;
  for_each_tcp_socket(false, [&](int descriptor, const std::string&) {
    pollfd end{descriptor, POLLRDHUP, 0};
    if (const auto at = listeners.find(other_end(descriptor));
        at != listeners.end() && ::poll(&end, 1, 0) > 0)
      rank = at->second;
  });
  return rank;
}

bool Gate::admit(Ranks& announced) {
  for_each_tcp_socket(false, [&](int descriptor, const std::string& own) {
    if (!has(listeners_, own)) return;
    const auto other = other_end(descriptor);
    if (announced.erase(other) == 0) return;
    mesh::pass_all_segments(descriptor);
    admitted_.push_back(other);
  });
  return announced.empty();
}

bool Gate::shut() const {
  const auto drop = mesh::filter_step(BPF_RET | BPF_K, mesh::drop_segment);
  bool empty = filter_listeners({&drop, 1});
  for_each_tcp_socket(true, [&](int descriptor, const std::string& own) {
    pollfd waiting{descriptor, POLLIN, 0};
    empty = empty && (!has(listeners_, own) || ::poll(&waiting, 1, 0) == 0);
  });
  return empty;
}

void Gate::refuse_others() const {
  for_each_tcp_socket(false, [&](int descriptor, const std::string& own) {
    if (has(listeners_, own) && !has(admitted_, other_end(descriptor)))
      ::shutdown(descriptor, SHUT_RDWR);
  });
}

}  // namespace tutti::backend::ucx
