#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

namespace tutti::internal {

/// Owns a file descriptor; -1 is none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }

  int fd() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;
  /// Ends a connection even while a forked child has the descriptor too; close() alone would not.
  void shut_down() noexcept;

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
};

/// All addresses of a host and port, in the system's order. Empty with `problem` set when there is
/// none. `listen`: to bind to.
std::vector<SocketAddress> resolve(const std::string& host, int port, bool listen,
                                   std::string& problem);

/// Numeric, without the port.
std::string host_of(const SocketAddress& address);
int port_of(const SocketAddress& address);
SocketAddress local_end(const Descriptor& socket);
SocketAddress remote_end(const Descriptor& socket);

/// Small frames leave at once, and a peer whose machine is gone is noticed within a minute.
void tune(const Descriptor& socket) noexcept;

/// "host:port", an IPv6 address in brackets.
std::string endpoint_text(const std::string& host, int port);

/// "Connection refused"; strerror() may not be called by several threads.
std::string system_text(int error);

}  // namespace tutti::internal
