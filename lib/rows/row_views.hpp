#pragma once

#include <cstddef>

#include <tutti/process_group.hpp>

namespace tutti::internal {

/// A view of rows [first, first + count) of an array.
TensorView rows_of(const TensorView& whole, std::int64_t first, std::int64_t count);
ConstTensorView rows_of(const ConstTensorView& whole, std::int64_t first, std::int64_t count);

/// A view as rows; a 0-dimensional array is one row, [1].
ConstTensorView as_rows(const ConstTensorView& array);

/// Copies within the group's memory. Does nothing for equal addresses or 0 bytes.
void copy_rows(ProcessGroup& group, void* to, const void* from, std::size_t bytes, Stream stream);

}  // namespace tutti::internal
