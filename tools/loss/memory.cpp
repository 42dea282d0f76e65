#include "loss/memory.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tutti::tool {
namespace {

/// "VmRSS:     1234 kB" of /proc/self/status, in bytes.
std::optional<std::int64_t> status(std::string_view key) {
  std::ifstream lines("/proc/self/status");
  std::string line;
  while (std::getline(lines, line))
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  return std::nullopt;
}

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

}  // namespace

void PeakMemory::begin() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  before_ = reset_peak() ? status("VmRSS:") : std::nullopt;
}

std::optional<std::int64_t> PeakMemory::end() const {
  const std::optional<std::int64_t> peak = status("VmHWM:");
  if (!before_ || !peak) return std::nullopt;
  return std::max<std::int64_t>(0, *peak - *before_);
}

}  // namespace tutti::tool
