#pragma once

#include <tutti/operation.hpp>

#include "collectives/wire.hpp"

// Direct: every rank sends to each rank that needs its data, all at once. Nothing is reduced.

namespace tutti::collectives {

void all_gather_direct(Wire& wire, const Op& op);
void all_gather_bounded_direct(Wire& wire, const Op& op);
void gather_direct(Wire& wire, const Op& op);
void scatter_direct(Wire& wire, const Op& op);
void all_to_all_direct(Wire& wire, const Op& op);

}  // namespace tutti::collectives
