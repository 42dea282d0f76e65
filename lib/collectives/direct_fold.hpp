#pragma once

#include <cstddef>

#include <tutti/operation.hpp>

#include "collectives/blocks.hpp"
#include "collectives/reducer.hpp"
#include "collectives/wire.hpp"

// Direct: every rank sends to each rank that reduces its data, all at once. A rank folds what it
// receives in rank order, so these serve CallOptions::order_fixed.

namespace tutti::collectives {

void all_reduce_direct(Wire& wire, const Op& op);
void reduce_direct(Wire& wire, const Op& op);
void reduce_scatter_direct(Wire& wire, const Op& op);
/// Inclusive or exclusive.
void scan_direct(Wire& wire, const Op& op);

/// Folds block r of all ranks into `out` on rank r. Takes block_fold_memory(size, its bytes) of the
/// arena.
void fold_block(Wire& wire, Arena& arena, const Reducer& reducer, const Blocks& blocks,
                const void* in, void* out);
std::size_t block_fold_memory(int size, std::size_t bytes);

}  // namespace tutti::collectives
