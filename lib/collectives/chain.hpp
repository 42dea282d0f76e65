#pragma once

#include <tutti/operation.hpp>

#include "collectives/wire.hpp"

// A chain: rank after rank, message by message.

namespace tutti::collectives {

void broadcast_chain(Wire& wire, const Op& op);
/// reduce: to the root. scan and exclusive_scan: to the last rank, and every rank keeps the partial
/// result.
void reduce_chain(Wire& wire, const Op& op);

}  // namespace tutti::collectives
