#pragma once

#include <cstdint>
#include <optional>

namespace tutti::tool {

/// How much more memory this process had at its peak than when begin() was called: resident pages,
/// as the kernel counts them (proc(5), VmHWM), of all threads. Small amounts come out as 0.
class PeakMemory {
 public:
  /// Gives what was freed back to the system, so that it counts when it is used again.
  void begin();
  /// Bytes; empty where the kernel does not let a process reset its peak.
  std::optional<std::int64_t> end() const;

 private:
  std::optional<std::int64_t> before_{};
};

}  // namespace tutti::tool
