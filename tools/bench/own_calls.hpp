#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/process_group.hpp>

// The tool's own calls on the measured group, with values on the host, whatever the group's device.
// Never an all_reduce.

namespace tutti::tool {

/// Sends rank 0's decision to all ranks.
std::int64_t agree(ProcessGroup& group, std::int64_t rank0_decision);

/// The result is on rank 0.
std::vector<std::int64_t> reduce(ProcessGroup& group, std::span<const std::int64_t> own,
                                 ReduceOp op);

}  // namespace tutti::tool
