#pragma once

#include <tutti/gather.hpp>

namespace tutti::internal {

/// local [n_r, ...] of every rank to out [sum n_r, ...], the way that `algo` says. Arguments are
/// checked as all_gather checks them.
void gather_rows_by(GatherAlgo algo, ProcessGroup& group, const ConstTensorView& local,
                    const TensorView& out, const RowLayout& layout, const CallOptions& options);

/// Rows [first, first + count) of an array.
TensorView rows_of(const TensorView& whole, std::int64_t first, std::int64_t count);
ConstTensorView rows_of(const ConstTensorView& whole, std::int64_t first, std::int64_t count);

/// A 0-dimensional array is one row: [1].
ConstTensorView as_rows(const ConstTensorView& array);

/// In the group's memory; nothing happens for the same place, or no bytes.
void copy_rows(ProcessGroup& group, void* to, const void* from, std::size_t bytes, Stream stream);

}  // namespace tutti::internal
