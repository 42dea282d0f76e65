#pragma once

#include <tutti/cluster.hpp>

namespace tutti::internal {

/// Sets info.store and info.hosts_store from the environment and info.launcher. Leaves them
/// unchanged if no variable gives an address.
void read_store(ClusterInfo& info);

}  // namespace tutti::internal
