#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "sockets.hpp"

namespace tutti::backend::gloo {

/// A thread that detects ended connections. Gloo reports one only to a call that waits for that
/// peer; calls that wait for other ranks would not hear of it.
class ConnectionWatcher {
 public:
  /// `ended(i)`: connection i was ended by the other side; called again, every now and then, until
  /// it returns true. `look`: called every 100 ms at the latest.
  ConnectionWatcher(std::shared_ptr<const Sockets> sockets, std::function<bool(std::size_t)> ended,
                    std::function<void()> look);
  ~ConnectionWatcher();
  ConnectionWatcher(const ConnectionWatcher&) = delete;
  ConnectionWatcher& operator=(const ConnectionWatcher&) = delete;

  /// The thread ends soon, and lets go of the sockets. From any thread, also from ended().
  void stop() noexcept;
  /// Stops and blocks until the thread has ended, unless it is the one that asks.
  void join() noexcept;

 private:
  class Event;
  std::shared_ptr<Event> stop_;  // The thread's too: it may end later.
  std::thread thread_;
};

}  // namespace tutti::backend::gloo
