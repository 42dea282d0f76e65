#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "sockets.hpp"

namespace tutti::backend::gloo {

/// A thread that detects ended connections. Gloo reports one only to a call that waits for that
/// peer, not to calls that wait for other ranks.
class ConnectionWatcher {
 public:
  /// `ended(i)`: the peer ended connection i; called again in pauses until it returns true. `look`:
  /// called every 100 ms at the latest.
  ConnectionWatcher(std::shared_ptr<const Sockets> sockets, std::function<bool(std::size_t)> ended,
                    std::function<void()> look);
  ~ConnectionWatcher();
  ConnectionWatcher(const ConnectionWatcher&) = delete;
  ConnectionWatcher& operator=(const ConnectionWatcher&) = delete;

  /// Makes the thread release the sockets and end soon. From any thread, also from ended().
  void stop() noexcept;
  /// Stops the thread and blocks until it has ended. On that thread itself: does not block.
  void join() noexcept;

 private:
  class Event;
  std::shared_ptr<Event> stop_;  // Shared with the thread, which may end later.
  std::thread thread_;
};

}  // namespace tutti::backend::gloo
