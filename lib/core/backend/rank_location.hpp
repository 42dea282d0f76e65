#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/backend/backend_table.hpp>

#include "values/cores.hpp"
#include "values/host_identity.hpp"

namespace tutti::internal {

class Rendezvous;

/// The location of a rank, which the ranks of a group exchange once, when the group is made. Parts
/// of the group use the locations of their ranks.
struct RankLocation {
  HostIdentity identity;      ///< Of its host.
  std::string host;           ///< host_of().
  std::string address{};      ///< Store::local_address().
  std::int32_t process = 0;   ///< Its number, in its process namespace.
  Cores cores{};              ///< That its process may use.
  bool serves_store = false;  ///< Its process serves the group's store.
  std::string facts{};        ///< backend_facts(), if "auto" chooses the backend.

  /// True if the ranks reach each other over the loopback interface.
  bool shares_loopback(const RankLocation& other) const {
    return identity.boot == other.identity.boot && identity.network == other.identity.network;
  }
};
using RankLocations = std::vector<std::shared_ptr<const RankLocation>>;  ///< By rank.

Bytes encode(const RankLocation& location);

/// The location of a rank of this process. `rank`: of the whole group. @throws Error
/// resource_exhausted if no descriptor is left.
RankLocation own_location(const Store& store, int rank);
/// Collective. `mine`: the location of this rank.
RankLocations exchange_locations(Rendezvous& rendezvous, const RankLocation& mine);
/// BackendInit::locations; without them collective: exchanges them.
RankLocations locations_of(const BackendInit& init, Rendezvous& rendezvous);

}  // namespace tutti::internal
