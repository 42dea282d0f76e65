#pragma once

#include <string>

namespace tutti::internal {

/// The identity of a process's host. Processes can share memory if theirs are equal: the running
/// kernel (boot id), the network and user namespaces, and the user. The process namespace counts if
/// the kernel gives no descriptor of a peer in another one, which tells its death.
struct HostIdentity {
  std::string boot;
  std::string network;
  std::string processes;
  std::string users;
  std::string user;
  bool sees_peers = false;  ///< In other process namespaces: SO_PEERPIDFD, of Linux 6.5.
};
/// A descriptor of the process that made this end's peer of a unix connection (pidfd), in any
/// process namespace; negative with errno if there is none.
int peer_process(int socket) noexcept;
/// @throws Error resource_exhausted if no descriptor is left.
HostIdentity host_identity();

std::string text_of(const HostIdentity& host);

/// Names the differences: "the boot id (a and b)"; of one running kernel all of them, with the
/// settings of containers that remove them. Empty if processes with these identities can share
/// memory.
std::string difference(const HostIdentity& a, const HostIdentity& b);

/// The host of a rank as text: the name that TUTTI_HOSTS gives, or else that of host_identity().
/// TUTTI_HOSTS lists names by rank, "a,a,b,b"; a list shorter than the group repeats.
/// @throws Error invalid_argument for an empty name in the list.
std::string host_of(int rank);
/// True if TUTTI_HOSTS names the hosts.
bool has_named_hosts() noexcept;

}  // namespace tutti::internal
