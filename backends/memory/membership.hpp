#pragma once

#include <cstddef>
#include <vector>

#include "descriptor.hpp"
#include "group_memory.hpp"

namespace tutti::backend::memory {

/// A rank's part in a group.
struct Membership {
  explicit Membership(int size) noexcept : memory(size) {}

  GroupMemory memory;
  std::vector<Descriptor> processes{};  ///< By rank; not open for ranks of this process.
  std::vector<int> ids{};               ///< Of the processes, by rank.
  std::size_t cores = 1;                ///< The cores that all ranks may use together.
};

}  // namespace tutti::backend::memory
