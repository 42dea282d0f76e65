#pragma once

#include <cstddef>

#include <tutti/operation.hpp>

#include "collectives/blocks.hpp"
#include "collectives/wire.hpp"

// The segmented ring. Every block travels past all ranks but one, cut into messages, and a rank
// forwards each message as soon as it is here. So all links are busy all the time, whatever the
// sizes of the blocks: each rank sends what it has to send and waits only for data that it
// forwards. Costs about max over r of (total - a block) / bandwidth, and W - 2 messages of latency.

namespace tutti::collectives {

/// reduce_scatter of equal slices, then all_gather of them.
void all_reduce_ring(Wire& wire, const Op& op);
void all_gather_ring(Wire& wire, const Op& op);
void reduce_scatter_ring(Wire& wire, const Op& op);

/// Sends block r of `data`, which is on rank r, to all ranks. Takes gather_ring_memory() of the
/// arena.
void gather_ring(Wire& wire, Arena& arena, const Blocks& blocks, Bytes data);
std::size_t gather_ring_memory(int size);

}  // namespace tutti::collectives
