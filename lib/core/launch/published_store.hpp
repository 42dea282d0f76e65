#pragma once

#include <chrono>
#include <memory>

#include <tutti/cluster.hpp>
#include <tutti/store/store.hpp>

namespace tutti::internal {

/// True if rank 0 can tell the other ranks where its store is through the launcher's key-value
/// space: the launcher has one, no address of a store is known, and the ranks are not known to be
/// on one host.
bool can_publish_store(const ClusterInfo& info);

/// Opens the store of a launcher with a key-value space. Rank 0 hosts it at any free port and
/// publishes its addresses, the port and a new token (none if there is a token file, or
/// ClusterInfo::open_store without OpenSSL). The other ranks take the first address that answers.
/// Rank 0 takes part in the exchange even if it cannot host the store: the others get an error.
/// The exchange happens once per process; later calls use its result.
/// @throws Error as open_cluster_store().
std::shared_ptr<Store> open_published_store(const ClusterInfo& info,
                                            std::chrono::nanoseconds timeout);

}  // namespace tutti::internal
