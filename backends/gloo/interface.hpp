#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::backend::gloo {

/// An address of a network interface of this rank.
struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< Numeric: "10.0.0.7", "fe80::1".
  bool loopback = false;
};

/// The addresses of this machine's interfaces that are up, IPv4 first.
std::vector<Interface> interfaces();

/// Chooses an interface. `wanted` has NCCL's syntax: "eth" (names that begin so), "=eth0" (this
/// name), "^lo" (none that begin so), several with commas; empty: the interface that holds `route`,
/// and without a route the first one that is not loopback. @throws Error invalid_argument with the
/// names of all interfaces.
Interface choose_interface(const std::vector<Interface>& all, std::string_view wanted,
                           std::string_view route);

/// A string for the machine and its network namespace, equal for processes that can reach each
/// other by loopback.
std::string host_identity();

}  // namespace tutti::backend::gloo
