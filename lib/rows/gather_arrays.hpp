#pragma once

#include <functional>

#include <tutti/gather.hpp>

#include "rows/metadata_exchange.hpp"

namespace tutti::internal {

/// The memory of the results.
template <typename Options>
Memory& memory_of(ProcessGroup& group, const Options& options) {
  return options.memory != nullptr ? *options.memory : group.memory();
}

/// all_gather_rows of the request's arrays, which share a layout. A 0-dimensional array is one row.
/// The result has no data if the request is for small arrays only and one is larger. `work`, for
/// one array on the group's device: receives the Work of rows that were not inlined.
GatheredArrays gather_arrays(ProcessGroup& group, const GatherRequest& request,
                             const GatherOptions& options, Work* work = nullptr);

/// gather_arrays() with arrays and results in host memory, for any device of the group.
GatheredArrays gather_host_arrays(ProcessGroup& group, GatherRequest request,
                                  const CallOptions& options);

/// As the public functions, with the caller's own check, which runs on each rank (scatter_rows: on
/// root). If it throws, every rank gets an Error.
using CallerCheck = std::function<void()>;
GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                         const GatherOptions& options, const CallerCheck& check,
                         Work* work = nullptr);
Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout* layout,
                    int root, const ResultOptions& options, const CallerCheck& check);

}  // namespace tutti::internal
