#pragma once

#include <cstdint>

#include "bench/plan.hpp"
#include "bench/record.hpp"
#include "bench/timing.hpp"
#include "bench/workspace.hpp"
#include "run/control.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// Measures one size of a block, on every rank at once. The row is filled in on rank 0.
Row measure(Rank& rank, Control& control, Workspace& workspace, const Block& block,
            std::int64_t bytes, const Timing& timing);

}  // namespace tutti::tool
