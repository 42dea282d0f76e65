#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::backend::gloo {

/// Makes the kernel drop every data segment that lacks `token` in its first fields, on these
/// listeners and on the sockets they accept. Some frames of an unauthenticated peer would make Gloo
/// end the process (transport/tcp/pair.cc).
void admit_only(std::uint64_t token, std::span<const sockaddr_storage> listeners);

/// The sockets of a mesh. Gloo does not expose them, so they are found among the descriptors of
/// this process by the addresses of its pairs. The descriptors are duplicates: Gloo may close its
/// own at any time, and their numbers may be reused.
class Sockets {
 public:
  Sockets() = default;
  /// Finds the socket of each connection by its two addresses. Sets close-on-exec on Gloo's
  /// descriptors and on the epoll instance that watches them.
  static Sockets find(std::span<const sockaddr_storage> own_ends,
                      std::span<const sockaddr_storage> their_ends);
  Sockets(Sockets&& other) noexcept
      : descriptors_(std::exchange(other.descriptors_, {})), relayed_(other.relayed_) {}
  Sockets& operator=(Sockets&& other) noexcept {
    std::swap(descriptors_, other.descriptors_);
    std::swap(relayed_, other.relayed_);
    return *this;
  }
  ~Sockets();

  /// The first connection that has the own address of find() and another peer; -1: none.
  int relayed() const noexcept { return relayed_; }
  /// Undoes admit_only().
  void admit_all() const noexcept;
  /// Ends the connections in both directions; peers notice at once.
  void shut_down() const noexcept;
  /// The descriptors in the order of find()'s addresses; -1: not found.
  std::span<const int> descriptors() const noexcept { return descriptors_; }

 private:
  std::vector<int> descriptors_;
  int relayed_ = -1;
};

}  // namespace tutti::backend::gloo
