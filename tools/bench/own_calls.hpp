#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/process_group.hpp>

// The tool's own calls on the group that it measures: of values on the host, wherever the group
// has its arrays. Never an all_reduce.

namespace tutti::tool {

/// Tells all ranks what rank 0 decided.
std::int64_t agree(ProcessGroup& group, std::int64_t rank0_decision);

/// The result is rank 0's.
std::vector<std::int64_t> reduce(ProcessGroup& group, std::span<const std::int64_t> own,
                                 ReduceOp op);

}  // namespace tutti::tool
