#pragma once

#include <tutti/cluster.hpp>

namespace tutti::internal {

/// Fills in where the ranks meet, as the environment tells it to any launcher's processes.
void read_store(ClusterInfo& info);

}  // namespace tutti::internal
