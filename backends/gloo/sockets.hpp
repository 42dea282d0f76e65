#pragma once

#include <sys/socket.h>

#include <span>
#include <vector>

namespace tutti::backend::gloo {

/// The sockets behind a mesh. Gloo does not show them, so they are found among the descriptors of
/// this process by the addresses that its pairs have. They stay Gloo's: closed by it alone.
class Sockets {
 public:
  Sockets() = default;
  /// `addresses`: each pair's own, after it has connected. Also keeps them, and the epoll
  /// descriptor that watches them, out of programs that this process starts.
  static Sockets find(std::span<const sockaddr_storage> addresses);

  /// Ends the connections in both directions; peers notice at once. The descriptors stay open.
  void shut_down() const noexcept;
  /// Blocks until the peers' machines have everything that was sent: a socket that is closed with
  /// unread input loses what it has not yet sent. Gives up after a second without progress.
  void drain() const noexcept;
  std::size_t count() const noexcept { return descriptors_.size(); }

 private:
  std::vector<int> descriptors_;
};

}  // namespace tutti::backend::gloo
