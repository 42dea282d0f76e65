#pragma once

#include <functional>
#include <thread>

#include <csignal>

namespace tutti::tool {

/// SIGINT and SIGTERM of this process as calls on a thread of its own, instead of the end of the
/// process. Made before any other thread, which would get the signals else.
class Signals {
 public:
  /// `handle` gets the number of the signal.
  explicit Signals(std::function<void(int)> handle);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

 private:
  sigset_t before_{};
  std::jthread thread_{};
};

}  // namespace tutti::tool
