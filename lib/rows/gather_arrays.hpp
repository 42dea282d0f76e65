#pragma once

#include <tutti/gather.hpp>

#include "rows/announcement.hpp"

namespace tutti::internal {

/// all_gather_rows of the offer's arrays, which share a layout. A 0-dimensional array is one row.
/// No data is in the result when the offer is of small arrays only, and they are not.
GatheredArrays gather_arrays(ProcessGroup& group, const Offer& offer, const GatherOptions& options);

/// The same of arrays in host memory, whatever the group's device; so are the results.
GatheredArrays gather_host_arrays(ProcessGroup& group, const Offer& offer,
                                  const CallOptions& options);

}  // namespace tutti::internal
