#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <tutti/backend/backend_table.hpp>

#include "descriptor.hpp"
#include "segment.hpp"

namespace tutti::backend::shm {

/// The shared memory of a group, and the processes of its ranks.
struct Membership {
  std::shared_ptr<Store> store;  ///< A prefix of the group's store, for this group alone.
  std::shared_ptr<Segment> segment;
  std::vector<Descriptor> processes;  ///< By rank; not open for ranks of this process.
  std::vector<int> ids;               ///< Of the processes, by rank.
  std::size_t cores = 1;              ///< The cores that all ranks may use together.
};

/// Finds the other ranks through the store; rank 0 makes the segment and passes it to them. Returns
/// when this rank has mapped it. @throws Error timeout with the missing ranks; unsupported if ranks
/// are on different hosts; resource_exhausted on all ranks if there is not enough memory.
Membership rendezvous(const BackendInit& init, std::size_t bytes, Deadline limit);

}  // namespace tutti::backend::shm
