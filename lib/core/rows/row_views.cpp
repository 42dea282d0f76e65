#include "rows/row_views.hpp"

namespace tutti::internal {

TensorView rows_of(const TensorView& whole, std::int64_t first, std::int64_t count) {
  const auto rows = rows_of(ConstTensorView(whole), first, count);
  return {const_cast<void*>(rows.data), rows.dtype, rows.shape, rows.device};
}

ConstTensorView rows_of(const ConstTensorView& whole, std::int64_t first, std::int64_t count) {
  return {static_cast<const std::byte*>(whole.data) +
              static_cast<std::size_t>(first) * whole.row_bytes(),
          whole.dtype, whole.shape.with_rows(count), whole.device};
}

ConstTensorView as_rows(const ConstTensorView& array) {
  if (array.shape.ndim() != 0) return array;
  return {array.data, array.dtype, {1}, array.device};
}

void copy_rows(ProcessGroup& group, void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes != 0 && to != from) group.memory().copy(to, from, bytes, stream);
}

}  // namespace tutti::internal
