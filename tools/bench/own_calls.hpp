#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/process_group.hpp>

// The tool's own calls on the measured group. Their values are on the host, whatever the group's
// device. None of them is an all_reduce, so that tests can tell them from measured calls.

namespace tutti::tool {

/// Sends rank 0's decision to all ranks and returns it.
std::int64_t agree(ProcessGroup& group, std::int64_t rank0_decision);

/// Reduces the values of all ranks to rank 0. The result is valid on rank 0 only.
std::vector<std::int64_t> reduce(ProcessGroup& group, std::span<const std::int64_t> own,
                                 ReduceOp op);

}  // namespace tutti::tool
