#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <tutti/backend/backend_table.hpp>

#include "backend/group_names.hpp"
#include "descriptor.hpp"
#include "group_memory.hpp"

namespace tutti::backend::shm {

/// A rank's part in a group.
struct Membership {
  explicit Membership(int size) noexcept : memory(size) {}

  GroupMemory memory;
  std::vector<Descriptor> processes{};  ///< By rank; not open for ranks of this process.
  std::vector<int> ids{};               ///< Of the processes, by rank.
  std::size_t cores = 1;                ///< The cores that all ranks may use together.
};

/// Finds the other ranks through the store; rank 0 makes the segment and passes it to them. Returns
/// when all ranks have mapped it: then, and only then, it returns on all ranks.
/// @throws Error timeout at BackendInit::timeout, with the missing ranks; unsupported if ranks are
///         on different hosts; resource_exhausted; peer_lost if a rank has died. If a rank gives
///         up, all ranks throw its error.
Membership rendezvous(const BackendInit& init);

/// The error of a rank whose process has died.
Error dead_error(const internal::GroupNames& names, int rank);

}  // namespace tutti::backend::shm
