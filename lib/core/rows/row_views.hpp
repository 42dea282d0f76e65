#pragma once

#include <cstddef>

#include <tutti/process_group.hpp>

namespace tutti::internal {

/// Returns a view of rows [first, first + count) of an array.
TensorView rows_of(const TensorView& whole, std::int64_t first, std::int64_t count);
ConstTensorView rows_of(const ConstTensorView& whole, std::int64_t first, std::int64_t count);

/// Returns a view with rows: a 0-dimensional array becomes one row, [1].
ConstTensorView as_rows(const ConstTensorView& array);

/// Copies to the group's memory, from it or from the host. Does nothing if the addresses are equal
/// or for 0 bytes.
void copy_rows(ProcessGroup& group, void* to, const void* from, std::size_t bytes, Stream stream);

}  // namespace tutti::internal
