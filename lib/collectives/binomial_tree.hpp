#pragma once

#include <tutti/operation.hpp>

#include "collectives/wire.hpp"

// A binomial tree: log2 W steps, each with the whole array.

namespace tutti::collectives {

void broadcast_binomial_tree(Wire& wire, const Op& op);

}  // namespace tutti::collectives
