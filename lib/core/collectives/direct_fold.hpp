#pragma once

#include <cstddef>

#include "collectives/blocks.hpp"
#include "collectives/reducer.hpp"
#include "collectives/wire.hpp"

namespace tutti::collectives {

/// Folds block r of all ranks into `out` on rank r. Takes block_fold_memory(size, bytes of the
/// block) from the arena.
void fold_block(Wire& wire, Arena& arena, const Reducer& reducer, const Blocks& blocks,
                const void* in, void* out);
std::size_t block_fold_memory(int size, std::size_t bytes);

}  // namespace tutti::collectives
