#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tutti::backend::gloo {

/// Makes the kernel drop every data segment to these listeners, and to the sockets they accept,
/// that has no `token` among its first fields. Some frames of an unauthenticated peer would end
/// Gloo's process (transport/tcp/pair.cc).
void admit_only(std::uint64_t token, std::span<const sockaddr_storage> listeners) noexcept;

/// The sockets of a mesh. Gloo does not expose them, so they are found among the descriptors of
/// this process by the addresses of its pairs. The descriptors are duplicates: Gloo may close its
/// own at any time, and their numbers may be reused.
class Sockets {
 public:
  Sockets() = default;
  /// Finds the socket of each connection by its two ends. Also sets close-on-exec on Gloo's
  /// descriptors and on the epoll instance that watches them.
  static Sockets find(std::span<const sockaddr_storage> own_ends,
                      std::span<const sockaddr_storage> their_ends);
  Sockets(Sockets&& other) noexcept : descriptors_(std::exchange(other.descriptors_, {})) {}
  Sockets& operator=(Sockets&& other) noexcept {
    std::swap(descriptors_, other.descriptors_);
    return *this;
  }
  ~Sockets();

  /// Undoes admit_only().
  void admit_all() const noexcept;
  /// Ends the connections in both directions; peers notice at once.
  void shut_down() const noexcept;
  /// Blocks until the peers' machines have acknowledged all sent data: a socket closed with unread
  /// input drops its unsent data. Gives up after 1 s without progress.
  void drain() const noexcept;
  /// In the order of the ends; -1: not found.
  std::span<const int> descriptors() const noexcept { return descriptors_; }

 private:
  std::vector<int> descriptors_;
};

}  // namespace tutti::backend::gloo
