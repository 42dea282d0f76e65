#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "values/bytes.hpp"

namespace tutti::internal {

/// The content of a file; empty if it cannot be read.
std::string text_of(const std::string& path);

/// Calls visit() for each cgroup that limits a process: its own ones with this controller, of
/// either version, and all above them. `root`: the directory of the cgroup file system, and `own`:
/// the text of /proc/self/cgroup.
void for_each_cgroup(const std::string& root, const std::string& own, const std::string& controller,
                     const std::function<void(const std::string& directory)>& visit);

/// The cores that a process may use.
struct Cores {
  std::vector<int> list{};  ///< Of its affinity mask.
  /// The processor time that its cgroup allows, in cores; at least 1.
  std::size_t quota = 0;
};
/// Arguments of for_each_cgroup().
std::size_t cgroup_quota(const std::string& root, const std::string& own);
Cores usable_cores();

/// The number of cores that these processes may use at the same time.
std::size_t count_cores(const std::vector<Cores>& processes);

// The form in which processes exchange them.
void write(Writer& out, const Cores& cores);
Cores read_cores(Reader& in);

}  // namespace tutti::internal
