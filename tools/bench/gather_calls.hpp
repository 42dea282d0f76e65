#pragma once

#include <tutti/process_group.hpp>

#include "bench/cell.hpp"

// The calls of <tutti/gather.hpp>: their result goes to a prepared array, so no allocation is
// timed.

namespace tutti::tool {

/// all_gather_rows() of counts that no rank knows of the others.
void gather_unknown_rows(ProcessGroup& group, const Arrays& arrays, const How& how);
void gather_padded_rows(ProcessGroup& group, const Arrays& arrays, const How& how);

}  // namespace tutti::tool
