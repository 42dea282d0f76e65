#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tutti/backend/backend_table.hpp>

#include "backend/group_names.hpp"
#include "backend/rank_location.hpp"
#include "store/network_interface.hpp"
#include "values/bytes.hpp"

namespace tutti::backend::mesh {

using Interface = internal::NetworkInterface;

/// Chooses an interface. `wanted` has the syntax of NCCL_SOCKET_IFNAME: "eth" (a prefix of the
/// name), "=eth0" (the exact name), "^lo" (excludes a prefix); commas separate several. An empty
/// `wanted` chooses the interface with the address `route`; if there is none, the first that is not
/// loopback, or else the first. @throws Error invalid_argument if none matches `wanted`, with all
/// interfaces in its text; unsupported if there is no interface.
Interface choose_interface(const std::vector<Interface>& all, std::string_view wanted,
                           std::string_view route);

/// The interface over which peers reach this rank: that of BackendInit::args, of TUTTI_IFNAME, or
/// the one that reaches the store. If the store is on this host and a rank is not, the one that
/// reaches the first rank of another host; if the store has no network, that of the default route.
Interface interface_of(const BackendInit& init, const internal::RankLocations& locations);
/// The line of `tutti info`.
std::string describe_interface();

/// Encoding for the store.
void write(internal::Writer& out, const Interface& interface);
Interface read_interface(internal::Reader& in);

/// @param chosen  by rank. @throws Error unsupported if a rank with a loopback address has peers on
///                other hosts.
void check_reachable(const internal::GroupNames& names, const internal::RankLocations& locations,
                     const std::vector<Interface>& chosen);

}  // namespace tutti::backend::mesh
