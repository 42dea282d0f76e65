#pragma once

#include <sys/types.h>

#include "run/child.hpp"

namespace tutti::tool {

/// Another process that waits for the end of this one, however it comes, and then kills the process
/// groups that are still there: a rank that is a script has the program below it, which nobody else
/// would end when the launcher is killed. It is nobody's child here.
class Keeper {
 public:
  /// @throws Failure unavailable when it cannot be started.
  Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  /// Returns when the other process has done its work.
  ~Keeper();

  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void tell(pid_t word);

  Descriptor words_{};  // Closed when this process ends.
  Descriptor ended_{};  // Closed when the other one does.
};

}  // namespace tutti::tool
