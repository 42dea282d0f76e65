#pragma once

#include <cstddef>

#include "collectives/blocks.hpp"
#include "collectives/wire.hpp"

namespace tutti::collectives {

/// The gather of the segmented ring: sends block r of `data` from rank r to all ranks. Takes
/// gather_ring_memory(size) from the arena.
void gather_ring(Wire& wire, Arena& arena, const Blocks& blocks, Bytes data);
std::size_t gather_ring_memory(int size);

}  // namespace tutti::collectives
