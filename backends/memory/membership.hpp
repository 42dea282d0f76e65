#pragma once

#include <cstddef>
#include <vector>

#include "backend/waiting.hpp"
#include "descriptor.hpp"
#include "group_memory.hpp"
#include "reads.hpp"

namespace tutti::backend::memory {

/// A rank's part in a group.
struct Membership {
  /// @throws Error invalid_argument for variables of the environment: before other ranks join.
  explicit Membership(int size) : memory(size) { (void)internal::Polling::pauses_in_a_row(); }

  ReadChoice reads{};
  GroupMemory memory;
  std::vector<Descriptor> processes{};  ///< By rank; not open for ranks of this process.
  /// Of the processes, by rank. Negative: a number in another process namespace, by which no system
  /// call of this process finds a process.
  std::vector<int> ids{};
  std::size_t cores = 1;  ///< The cores that all ranks may use together.
};

}  // namespace tutti::backend::memory
