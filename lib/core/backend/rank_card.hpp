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

/// The place of a rank, which the ranks of a group exchange once, when the group is made. Parts of
/// the group use the cards of their ranks.
struct [[gnu::visibility("hidden")]] RankCard {
  HostIdentity identity;      ///< Of its host.
  std::string host;           ///< host_of().
  std::int32_t process = 0;   ///< Its number, in the namespace of its host.
  Cores cores{};              ///< That its process may use.
  bool serves_store = false;  ///< Its process serves the group's store.
  std::string facts{};        ///< backend_facts(), if "auto" chooses the backend.

  /// True if the ranks reach each other over the loopback interface.
  bool shares_loopback(const RankCard& other) const {
    return identity.boot == other.identity.boot && identity.network == other.identity.network;
  }
};
using RankCards = std::vector<std::shared_ptr<const RankCard>>;  ///< By rank.

Bytes encode(const RankCard& card);

/// The card of a rank of this process. `rank`: of the whole group. @throws Error
/// resource_exhausted if no descriptor is left.
RankCard own_card(const Store& store, int rank);
/// Collective. `mine`: the card of this rank.
RankCards exchange_cards(Rendezvous& rendezvous, const RankCard& mine);
/// BackendInit::cards; without them collective: exchanges them.
RankCards cards_of(const BackendInit& init, Rendezvous& rendezvous);

}  // namespace tutti::internal
