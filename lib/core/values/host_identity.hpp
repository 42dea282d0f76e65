#pragma once

#include <string>

namespace tutti::internal {

/// The identity of a process's host. Processes can share memory if theirs are equal: the running
/// kernel (boot id), the network, process and user namespaces, and the user.
struct HostIdentity {
  std::string boot;
  std::string network;
  std::string processes;
  std::string users;
  std::string user;
};
/// @throws Error resource_exhausted if no descriptor is left.
HostIdentity host_identity();

std::string text_of(const HostIdentity& host);

/// What differs, "the boot id (a and b)"; of one running kernel every difference, with the settings
/// of containers that remove it. Empty if processes with these identities can share memory.
std::string difference(const HostIdentity& a, const HostIdentity& b);

/// The host of a rank as text: the name that TUTTI_HOSTS gives, or else that of
/// host_identity().
/// TUTTI_HOSTS lists names by rank, "a,a,b,b"; a list shorter than the group repeats.
/// @throws Error invalid_argument for an empty name in the list.
std::string host_of(int rank);
/// True if TUTTI_HOSTS names the hosts.
bool has_named_hosts() noexcept;

}  // namespace tutti::internal
