#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "descriptor.hpp"

namespace tutti::backend::shm {

/// The identity of a process's host. Processes can share memory if theirs are equal: the running
/// kernel (boot id), the network, process and user namespaces, and the user.
struct HostIdentity {
  std::string boot;
  std::string network;
  std::string processes;
  std::string users;
  std::string user;
};
HostIdentity host_identity();

/// The first difference in words, "the boot id (a and b)"; empty if processes with these identities
/// can share memory.
std::string difference(const HostIdentity& a, const HostIdentity& b);

/// The cores that a process may use.
struct Cores {
  std::vector<int> list{};  ///< Of its affinity mask.
  /// The processor time that its cgroup allows, in cores; at least 1.
  std::size_t quota = 0;
};
/// `root`: the directory of the cgroup file system, and `own`: the text of /proc/self/cgroup.
std::size_t cgroup_quota(const std::string& root, const std::string& own);
Cores usable_cores();

/// The number of cores that these processes may use at the same time.
std::size_t count_cores(const std::vector<Cores>& processes);

/// A descriptor that becomes readable when the process ends. Not open if there is none: the process
/// has ended, or the kernel forbids it.
Descriptor process_descriptor(int process) noexcept;

}  // namespace tutti::backend::shm
