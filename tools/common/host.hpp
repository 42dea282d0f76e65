#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::tool {

/// What this process can learn about where it runs. A value type.
struct Host {
  std::string name{};
  int pid = 0;
  std::vector<int> cpus{};                  ///< Numbers of those that this process may use.
  std::string cpuset{};                     ///< The same as ranges: "0-3".
  std::string model{};                      ///< Of the CPU; empty when unknown.
  std::int64_t last_level_cache_bytes = 0;  ///< 32 MiB when unknown.
  std::int64_t free_bytes = 0;              ///< Memory that can be had without swapping.
};
Host this_host();

}  // namespace tutti::tool
