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

/// Chooses an interface. `wanted` has the syntax of NCCL_SOCKET_IFNAME: "eth" (a prefix of the
/// name), "=eth0" (the exact name), "^lo" (excludes a prefix); commas separate several. An empty
/// `wanted` chooses the interface with the address `route`; if there is none, the first that is not
/// loopback, or else the first. @throws Error invalid_argument if none matches `wanted`, with all
/// interfaces in its text; unsupported if there is no interface.
Interface choose_interface(const std::vector<Interface>& all, std::string_view wanted,
                           std::string_view route);

}  // namespace tutti::backend::gloo
