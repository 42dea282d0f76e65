#pragma once

#include <sys/types.h>

#include "run/child.hpp"

namespace tutti::tool {

/// A process that waits for the end of this one, however it ends, and then kills the remaining
/// process groups: if a rank is a script, no other process ends the program below it when the
/// launcher is killed. The reaper is not a child of this process.
class OrphanReaper {
 public:
  /// @throws Failure unavailable if it cannot be started.
  OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;
  /// Returns when the reaper has ended.
  ~OrphanReaper();

  void watch(pid_t group) { send(group); }
  void forget(pid_t group) { send(-group); }

 private:
  void send(pid_t group);

  Descriptor groups_{};  // Closed at the end of this process.
  Descriptor ended_{};   // Closed at the end of the reaper.
};

}  // namespace tutti::tool
