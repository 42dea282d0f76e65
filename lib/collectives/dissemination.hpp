#pragma once

#include <tutti/operation.hpp>

#include "collectives/wire.hpp"

// Dissemination: log2 W steps, each with an empty message.

namespace tutti::collectives {

void barrier_dissemination(Wire& wire, const Op& op);

}  // namespace tutti::collectives
