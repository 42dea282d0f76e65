#pragma once

#include <tutti/cluster.hpp>

namespace tutti::internal {

/// Fills in the store's address from variables that any launcher may set.
void read_store(ClusterInfo& info);

}  // namespace tutti::internal
