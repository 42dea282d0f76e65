#pragma once

#include <functional>

#include <tutti/gather.hpp>

#include "rows/metadata_exchange.hpp"

namespace tutti::internal {

/// Returns the memory for results: options.memory, or the group's if that is null.
inline Memory& memory_of(ProcessGroup& group, const CallOptions& options) {
  return options.memory != nullptr ? *options.memory : group.memory();
}

/// @throws Error invalid_argument unless `rows` has one entry per rank of the group, and this
/// rank's entry is the number of rows of `local`.
void check_rows(const ProcessGroup& group, const ConstTensorView& local, const RowLayout& rows);

/// Gathers the request's arrays, which have equal row counts, as all_gather_rows. A 0-dimensional
/// array is one row. With `only_small`, the result has no data if a rank has more than `small`
/// bytes. `work` may be set for one array on the group's device: it then receives the Work of the
/// gather, unless the rows were inlined.
GatheredArrays gather_arrays(ProcessGroup& group, const GatherRequest& request,
                             const RowLayout& rows, const CallOptions& options,
                             Work* work = nullptr);

/// Does the same as gather_arrays() with arrays and results in host memory, for any device of the
/// group.
[[gnu::visibility("default")]] GatheredArrays gather_host_arrays(ProcessGroup& group,
                                                                 GatherRequest request,
                                                                 const CallOptions& options);

/// These do the same as the public functions, and run the caller's check on each rank
/// (scatter_rows: on root). If the check throws, every rank gets an Error.
using CallerCheck = std::function<void()>;
GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                         const RowLayout& rows, const CallOptions& options,
                         const CallerCheck& check, Work* work = nullptr);
Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                    int root, const CallOptions& options, const CallerCheck& check);

}  // namespace tutti::internal
