#include "available_memory.hpp"

#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "values/cores.hpp"

namespace tutti::backend::memory {
namespace {

/// Nothing if the file is not there or has a word such as "max".
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::istringstream text(internal::text_of(path));
  std::uint64_t number = 0;
  return text >> number ? std::optional(number) : std::nullopt;
}

/// The sum of the values of these keys, in a text of lines "key value".
std::optional<std::uint64_t> sum_of(const std::string& text,
                                    std::initializer_list<std::string_view> keys) {
  std::istringstream lines(text);
  std::optional<std::uint64_t> sum;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t value = 0;
    if (!(words >> key >> value)) continue;
    for (const auto wanted : keys)
      if (key == wanted) sum = sum.value_or(0) + value;
  }
  return sum;
}

std::uint64_t difference(std::uint64_t from, std::uint64_t taken) {
  return from > taken ? from - taken : 0;
}

/// The memory that one cgroup leaves, of version 2 or 1; nothing if it has no limit.
std::optional<std::uint64_t> left_in_cgroup(const std::string& directory) {
  const auto limit = number_in(directory + "/memory.max");
  if (limit) {
    const auto files = sum_of(internal::text_of(directory + "/memory.stat"),
                              {"active_file", "inactive_file", "slab_reclaimable"});
    const auto used = number_in(directory + "/memory.current").value_or(0);
    return difference(*limit, difference(used, files.value_or(0)));
  }
  const auto old_limit = number_in(directory + "/memory.limit_in_bytes");
  if (!old_limit) return std::nullopt;
  const auto files = sum_of(internal::text_of(directory + "/memory.stat"),
                            {"total_active_file", "total_inactive_file"});
  const auto used = number_in(directory + "/memory.usage_in_bytes").value_or(0);
  return difference(*old_limit, difference(used, files.value_or(0)));
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory least{std::numeric_limits<std::uint64_t>::max(), "no limit is known"};
  if (const auto host = sum_of(internal::text_of(root + "/proc/meminfo"), {"MemAvailable:"}))
    least = {*host * 1024, "MemAvailable of the host"};
  internal::for_each_cgroup(root + "/sys/fs/cgroup", internal::text_of(root + "/proc/self/cgroup"),
                            "memory", [&](const std::string& directory) {
                              const auto left = left_in_cgroup(directory);
                              if (left && *left < least.bytes)
                                least = {*left, "the limit of the cgroup " + directory};
                            });
  return least;
}

}  // namespace tutti::backend::memory
