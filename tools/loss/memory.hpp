#pragma once

#include <cstdint>
#include <optional>

namespace tutti::tool {

/// The growth of this process's peak memory since begin(): resident pages of all threads, as the
/// kernel counts them (proc(5), VmHWM). Small amounts may show as 0.
class PeakMemory {
 public:
  /// Returns freed memory to the system, so that its reuse counts.
  void begin();
  /// Bytes; empty if the kernel does not allow a process to reset its peak.
  std::optional<std::int64_t> end() const;

 private:
  std::optional<std::int64_t> before_{};
};

}  // namespace tutti::tool
