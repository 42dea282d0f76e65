#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tutti::backend::memory {

/// Memory that a process may still allocate.
struct AvailableMemory {
  std::uint64_t bytes;
  std::string limit;  ///< The limit that leaves the least, in words.
};

/// The least of what the host (MemAvailable) and each cgroup of the process leave. The cache of
/// files counts as available, as the kernel frees it on demand; swap does not. Memory that is
/// allocated anywhere is no longer available, so nothing has to be counted beside it.
/// `root`: the directory of /proc and /sys, for tests.
AvailableMemory available_memory(const std::string& root = "");

/// The source of these figures; tests pass their own.
using MemoryFigures = std::function<AvailableMemory()>;

}  // namespace tutti::backend::memory
