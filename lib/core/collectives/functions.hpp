#pragma once

#include <tutti/backend/op.hpp>

#include "collectives/wire.hpp"

// The algorithms of the table, grouped by source file.

namespace tutti::collectives {

// Direct: every rank sends to each rank that needs its data, all at once. Nothing is reduced.
void all_gather_direct(Wire& wire, const Op& op);
void all_gather_bounded_direct(Wire& wire, const Op& op);
void gather_direct(Wire& wire, const Op& op);
void scatter_direct(Wire& wire, const Op& op);
void all_to_all_direct(Wire& wire, const Op& op);

// Direct with a fold: every rank sends to each rank that reduces its data, all at once. A rank
// folds the received data in rank order, so these functions serve CallOptions::order_fixed.
void all_reduce_direct(Wire& wire, const Op& op);
void reduce_direct(Wire& wire, const Op& op);
void reduce_scatter_direct(Wire& wire, const Op& op);
void scan_direct(Wire& wire, const Op& op);  ///< Inclusive or exclusive.

// Recursive doubling: log2 W steps, each with the whole array. If W is not a power of two, some
// ranks only send their array to a partner first and receive the result from it last. Operands are
// in rank order, so both sides compute the same bits.
void all_reduce_recursive_doubling(Wire& wire, const Op& op);

// The segmented ring. Every block passes W - 1 links, cut into messages, and a rank forwards each
// message as soon as it has arrived. A rank waits only for data that it forwards, so all links are
// busy for any sizes of the blocks. Takes about max over r of (total - block r) / bandwidth, plus
// the latency of W - 2 messages.
void all_reduce_ring(Wire& wire, const Op& op);  ///< A reduce_scatter, then an all_gather.
void all_gather_ring(Wire& wire, const Op& op);
void reduce_scatter_ring(Wire& wire, const Op& op);

// Slices: each rank folds a slice of the array in rank order; then the slices are collected. These
// functions serve CallOptions::order_fixed.
void all_reduce_slices(Wire& wire, const Op& op);
void reduce_slices(Wire& wire, const Op& op);

// A binomial tree: log2 W steps, each with the whole array.
void broadcast_binomial_tree(Wire& wire, const Op& op);

// A chain: each rank passes messages to the next rank.
void broadcast_chain(Wire& wire, const Op& op);
/// Partial results go to the root (reduce), or to the last rank while every rank keeps its own
/// (scan and exclusive_scan).
void reduce_chain(Wire& wire, const Op& op);

// Dissemination: log2 W steps, each with an empty message.
void barrier_dissemination(Wire& wire, const Op& op);

}  // namespace tutti::collectives
