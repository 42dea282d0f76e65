#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tutti::backend::gloo {

/// Anybody may connect to the listeners of a mesh while its ranks meet, and some frames of a
/// stranger end Gloo's process (transport/tcp/pair.cc). From now on the kernel drops every segment
/// for them with data that has no `token` among its first fields, also for what they accept.
void admit_only(std::uint64_t token, std::span<const sockaddr_storage> listeners) noexcept;

/// The sockets behind a mesh. Gloo does not show them, so they are found among the descriptors of
/// this process by the addresses that its pairs have. Gloo closes its own when it likes, and then
/// the number may be somebody else's: what is held here are duplicates.
class Sockets {
 public:
  Sockets() = default;
  /// The two ends of each connection. Also keeps Gloo's descriptors, and the epoll that watches
  /// them, out of programs that this process starts.
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
  /// Blocks until the peers' machines have everything that was sent: a socket that is closed with
  /// unread input loses what it has not yet sent. Gives up after a second without progress.
  void drain() const noexcept;
  /// In the order of the ends; -1: it was not found.
  std::span<const int> descriptors() const noexcept { return descriptors_; }

 private:
  std::vector<int> descriptors_;
};

}  // namespace tutti::backend::gloo
