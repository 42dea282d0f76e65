#include "common/host.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "common/text.hpp"

namespace tutti::tool {
namespace {

/// The value of "key   :" in a file of such lines; empty if missing.
std::string field(const char* file, std::string_view key) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

std::int64_t free_memory() {
  // Reads "12345 kB". A container may allow less.
  const std::string available = field("/proc/meminfo", "MemAvailable");
  if (!available.empty()) return std::atoll(available.c_str()) * 1024;
  return static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::int64_t last_level_cache() {
  const std::int64_t found =
      std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
  return found > 0 ? found : std::int64_t{32} << 20;
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

Host this_host() {
  Host host;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) host.name = name.data();
  host.pid = getpid();
  host.cpus = allowed_cpus();
  host.cpuset = format_ranges(host.cpus);
  host.model = field("/proc/cpuinfo", "model name");
  host.last_level_cache_bytes = last_level_cache();
  host.free_bytes = free_memory();
  return host;
}

}  // namespace tutti::tool
