#pragma once

#include <string>
#include <vector>

namespace tutti::internal {

/// An address of a network interface of this host.
struct NetworkInterface {
  std::string name;     ///< "eth0"
  std::string address;  ///< Numeric: "10.0.0.7", "fe80::1%eth0".
  bool loopback = false;
};

/// The addresses of this host's interfaces that are up, IPv4 first, link-local ones last.
/// @throws Error backend if the system does not list them.
std::vector<NetworkInterface> network_interfaces();

/// The address from which this host sends to `address`, a numeric one; empty without a route. No
/// packet is sent.
std::string address_towards(const std::string& address);
/// The address from which this host sends over IPv4 to hosts that it has no other route to.
std::string address_of_default_route();

/// True for a numeric address of the loopback network.
bool is_loopback(const std::string& address);

}  // namespace tutti::internal
