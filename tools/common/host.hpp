#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::tool {

/// The machine as this process sees it. A value type.
struct Host {
  std::string name{};
  int pid = 0;
  std::vector<int> cpus{};                  ///< Numbers of the CPUs that this process may use.
  std::string cpuset{};                     ///< The CPUs as ranges: "0-3".
  std::string model{};                      ///< Model of the CPU; empty if unknown.
  std::int64_t last_level_cache_bytes = 0;  ///< 32 MiB if unknown.
  std::int64_t free_bytes = 0;              ///< Memory available without swapping.
};
Host this_host();

}  // namespace tutti::tool
