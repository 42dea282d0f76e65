#pragma once

#include <functional>
#include <thread>

#include <csignal>

namespace tutti::tool {

/// Turns SIGINT and SIGTERM into calls on a dedicated thread instead of ending the process.
/// Construct it before other threads start; otherwise those threads receive the signals.
class Signals {
 public:
  /// `handle` receives the signal's number.
  explicit Signals(std::function<void(int)> handle);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

 private:
  sigset_t before_{};
  std::jthread thread_{};
};

}  // namespace tutti::tool
