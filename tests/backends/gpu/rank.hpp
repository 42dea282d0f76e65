#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include <tutti/backend/backend.hpp>
#include <tutti/cluster.hpp>
#include <tutti/init.hpp>

namespace tutti::gpu {

/// This process as its launcher tells it, alone without one; its device by its local rank.
struct Rank {
  int rank = 0;
  int size = 1;
  int device = 0;
  std::shared_ptr<Store> store{};
};

/// @throws Error.
inline Rank find_rank(int devices) {
  Rank here;
  const std::optional<ClusterInfo> info = VariablesEnvironment().detect();
  if (info) {
    here.rank = info->rank;
    here.size = info->size;
    here.device = (info->local_rank >= 0 ? info->local_rank : info->rank) % std::max(devices, 1);
  }
  here.store = info && info->size > 1 ? open_cluster_store(*info) : make_memory_store();
  return here;
}

}  // namespace tutti::gpu
