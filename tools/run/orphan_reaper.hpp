#pragma once

#include <sys/types.h>

#include "run/child.hpp"

namespace tutti::tool {

/// A process that waits until this process ends, even by SIGKILL, and then kills the process groups
/// that are still watched. Without it, a program started by a rank that is a script would outlive
/// the launcher. waitpid(-1) does not return the reaper.
class OrphanReaper {
 public:
  /// @throws Failure unavailable if it cannot be started.
  OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;
  /// Ends the reaper and waits for its end.
  ~OrphanReaper();

  void watch(pid_t group) { send(group); }
  void forget(pid_t group) { send(-group); }

 private:
  void send(pid_t group);

  Descriptor groups_{};  // Closed at the end of this process.
  pid_t reaper_ = -1;
};

}  // namespace tutti::tool
