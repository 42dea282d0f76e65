#include "store/listener.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

bool no_descriptor(int error) {
  return error == EMFILE || error == ENFILE;
}

Descriptor make_spare() {
  return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

Descriptor accept_from(const Descriptor& socket) {
  return Descriptor(::accept4(socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

}  // namespace

StoreListener::StoreListener(const std::string& host, int port)
    : port_(port), spare_(make_spare()) {
  if (port < 0 || port > 65535)
    failf(Errc::invalid_argument, "store server: port is {}; it is 0 for a free one, up to 65535",
          port);
  int error = 0;
  if (host.empty()) {
    SocketAddress any_6;
    auto* v6 = reinterpret_cast<sockaddr_in6*>(any_6.get());
    v6->sin6_family = AF_INET6;
    v6->sin6_addr = in6addr_any;
    any_6.size = sizeof(*v6);
    if (!listen_at(any_6, true, error) && error != EADDRINUSE) {  // A machine without IPv6.
      SocketAddress any_4;
      auto* v4 = reinterpret_cast<sockaddr_in*>(any_4.get());
      v4->sin_family = AF_INET;
      v4->sin_addr.s_addr = htonl(INADDR_ANY);
      any_4.size = sizeof(*v4);
      (void)listen_at(any_4, false, error);
    }
  } else {
    std::string problem;
    const auto addresses = resolve(host, port, true, problem);
    if (addresses.empty())
      failf(Errc::invalid_argument, "store server: host '{}': {}", host, problem);
    for (const auto& address : addresses)
      if (sockets_.size() < most) (void)listen_at(address, false, error);
  }
  name_ = endpoint_text(host.empty() ? "*" : host, port_);
  if (!sockets_.empty() && spare_) return;
  if (!spare_) error = EMFILE;
  failf(no_descriptor(error)     ? Errc::resource_exhausted
        : error == EADDRNOTAVAIL ? Errc::invalid_argument
                                 : Errc::backend,
        "store server: cannot listen on {}: {}", name_, system_text(error));
}

StoreListener::~StoreListener() {
  for (auto& socket : sockets_) socket.shut_down();
}

bool StoreListener::listen_at(SocketAddress address, bool both_families, int& error) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto set = [&](int level, int option, int value) {
    return ::setsockopt(socket.fd(), level, option, &value, sizeof(value)) == 0;
  };
  // Both families have the port at the same place; the first address chooses a free one for all.
  reinterpret_cast<sockaddr_in*>(address.get())->sin_port =
      htons(static_cast<std::uint16_t>(port_));
  if (!socket || !set(SOL_SOCKET, SO_REUSEADDR, 1) ||
      (address.family() == AF_INET6 && !set(IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1)) ||
      ::bind(socket.fd(), address.get(), address.size) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    error = errno;
    return false;
  }
  port_ = port_of(local_end(socket));
  sockets_.push_back(std::move(socket));
  return true;
}

void StoreListener::watch(const Descriptor& epoll, std::uint64_t first) {
  epoll_ = epoll.fd();
  first_ = first;
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = first + i;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, sockets_[i].fd(), &event) != 0)
      failf(Errc::resource_exhausted, "store server {}: cannot use epoll: {}", name_,
            system_text(errno));
  }
}

StoreListener::Knock StoreListener::accept(std::size_t socket, Descriptor& client) {
  client = accept_from(sockets_[socket]);
  if (client) return Knock::came;
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK) return Knock::nobody;
  if (error == ENOMEM || error == ENOBUFS) {
    pause();
    return Knock::nobody;
  }
  if (!no_descriptor(error)) return Knock::gone;
  // The kernel looks for a descriptor first, and for somebody who waits only then.
  pollfd waiting{sockets_[socket].fd(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0 ? Knock::full : Knock::nobody;
}

void StoreListener::refuse(std::size_t socket, std::span<const std::byte> words) {
  spare_.reset();
  auto client = accept_from(sockets_[socket]);
  if (client) (void)::send(client.fd(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  client.shut_down();
  spare_ = make_spare();
  if (!spare_) pause();  // Another thread took it. Asking again at once would be asking for ever.
}

void StoreListener::pause() {
  resumes_at_ = Clock::now() + 100ms;
  set_events(0);
}

void StoreListener::resume(Clock::time_point now) {
  if (now < resumes_at_) return;
  if (!spare_) spare_ = make_spare();
  if (!spare_) return pause();
  resumes_at_ = Clock::time_point::max();
  set_events(EPOLLIN);
}

void StoreListener::set_events(std::uint32_t events) {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = first_ + i;
    (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, sockets_[i].fd(), &event);
  }
}

}  // namespace tutti::internal
