#pragma once

#include <sys/types.h>

#include "run/child.hpp"

namespace tutti::tool {

/// Another process that waits for the end of this one, however it comes, and then kills the process
/// groups that are left: a rank may be a script, and the program below it has no other process that
/// ends it when the launcher is killed. The reaper is not a child of this process.
class OrphanReaper {
 public:
  /// @throws Failure unavailable when it cannot be started.
  OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;
  /// Returns when the other process has done its work.
  ~OrphanReaper();

  void watch(pid_t group) { send(group); }
  void forget(pid_t group) { send(-group); }

 private:
  void send(pid_t group);

  Descriptor groups_{};  // Closed when this process ends.
  Descriptor ended_{};   // Closed when the other one does.
};

}  // namespace tutti::tool
