#pragma once

#include <tutti/operation.hpp>

#include "collectives/wire.hpp"

// Recursive doubling: log2 W steps, each with the whole array. The ranks beyond the largest power
// of two hand theirs to a partner first and get the result from it last. Operands are in rank
// order, so both sides compute the same bits.

namespace tutti::collectives {

void all_reduce_recursive_doubling(Wire& wire, const Op& op);

}  // namespace tutti::collectives
