#pragma once

#include <tutti/backend/backend.hpp>

#include "collectives/table.hpp"
#include "collectives/wire.hpp"

namespace tutti::backend::gloo {

/// This rank's part of one collective. Blocks until its own result is there and the transport has
/// read what it sends.
void run_collective(Wire& wire, const Op& op, Algorithm algorithm);

}  // namespace tutti::backend::gloo
