#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "mesh/event.hpp"
#include "sockets.hpp"

namespace tutti::backend::gloo {

/// A thread that detects closed connections. Gloo reports a closed connection only to calls that
/// wait for that peer.
class ConnectionWatcher {
 public:
  /// `ended(i)`: called when the peer has closed connection i, and again in intervals until it
  /// returns true. `look`: called after each pause at the latest.
  ConnectionWatcher(std::shared_ptr<const Sockets> sockets, std::function<bool(std::size_t)> ended,
                    std::function<void()> look, std::chrono::milliseconds pause);
  ~ConnectionWatcher();
  ConnectionWatcher(const ConnectionWatcher&) = delete;
  ConnectionWatcher& operator=(const ConnectionWatcher&) = delete;

  /// Makes the thread release the sockets and end soon. Called from any thread and from ended().
  void stop() noexcept;
  /// Stops the thread and waits until it has ended. Does not wait when called on that thread.
  void join() noexcept;

 private:
  std::shared_ptr<mesh::Event> stop_;  // Shared with the thread, which may end later.
  std::thread thread_;
};

}  // namespace tutti::backend::gloo
