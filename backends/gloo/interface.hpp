#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::backend::gloo {

/// An address that a rank can be reached at.
struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< Numeric: "10.0.0.7", "fe80::1".
  bool loopback = false;
};

/// The addresses of this machine's interfaces that are up, IPv4 first.
std::vector<Interface> interfaces();

/// Chooses one. `wanted` has NCCL's syntax: "eth" (names that begin so), "=eth0" (this name),
/// "^lo" (none that begin so), several with commas; empty: the interface that holds `route`, and
/// without a route the first one that is not loopback.
/// @throws Error invalid_argument naming the interfaces there are.
Interface choose_interface(const std::vector<Interface>& all, std::string_view wanted,
                           std::string_view route);

/// The same string for processes that can reach each other by loopback: machine and network
/// namespace.
std::string host_identity();

}  // namespace tutti::backend::gloo
