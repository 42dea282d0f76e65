#include <tutti/ddp/sparse_rows.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <concepts>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti {
namespace ddp {
namespace {

using internal::failf;

/// Returns a view of an array on the host, or of its `copy` in host memory if it is on a device.
ConstTensorView on_host(Memory& memory, const Tensor& array, Stream stream, Tensor& copy) {
  if (array.device().type == DeviceType::cpu) return array.view();
  copy = Tensor(host_memory(), array.shape(), array.dtype());
  memory.copy(copy.data(), array.data(), array.bytes(), stream);
  return copy.view();
}

/// Copies an array to `memory` if that is on a device; otherwise returns the array.
Tensor in_memory(Memory& memory, Tensor array, Stream stream) {
  if (memory.device().type == DeviceType::cpu) return array;
  Tensor copy(memory, array.shape(), array.dtype(), stream);
  memory.copy(copy.data(), array.data(), array.bytes(), stream);
  return copy;
}

/// A gathered row and its index.
struct Entry {
  std::int64_t index;
  std::int64_t row;
};

/// Returns the rows sorted by index; rows of equal index are in rank order.
std::vector<Entry> sorted_entries(const ConstTensorView& indices, const RowLayout& rows,
                                  std::int64_t num_rows) {
  std::vector<Entry> entries;
  entries.reserve(static_cast<std::size_t>(rows.total()));
  for (int rank = 0; rank < rows.ranks(); ++rank)
    for (std::int64_t i = rows.offset(rank); i < rows.offset(rank) + rows[rank]; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::int64_t index = indices.dtype == DType::i64
                                     ? static_cast<const std::int64_t*>(indices.data)[at]
                                     : static_cast<const std::int32_t*>(indices.data)[at];
      if (index < 0 || (num_rows > 0 && index >= num_rows))
        failf(Errc::invalid_argument, "all_reduce_rows: index {} of rank {} is {}; it must be {}",
              i - rows.offset(rank), rank, index,
              num_rows > 0 ? fmt::format("from 0 to {}", num_rows - 1) : "0 or more");
      entries.push_back({index, i});
    }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return a.index != b.index ? a.index < b.index : a.row < b.row;
  });
  return entries;
}

/// The types of a sum and of its divisor. Not defined for elements that cannot be added.
template <typename T>
struct Sum {};
template <std::floating_point T>
struct Sum<T> {
  using Type = T;
  using Real = T;
};
template <std::floating_point T>
struct Sum<std::complex<T>> {
  using Type = std::complex<T>;
  using Real = T;
};
template <>
struct Sum<Float16> : Sum<float> {};
template <>
struct Sum<BFloat16> : Sum<float> {};

template <typename T>
concept Addable = requires {
  typename Sum<T>::Type;
};

/// out[i] = the sum of the rows with the i-th distinct index, divided by `divisor`.
template <Addable T>
void add_rows(const std::vector<Entry>& entries, const ConstTensorView& rows, double divisor,
              const TensorView& out) {
  using Element = typename Sum<T>::Type;
  const auto by = static_cast<typename Sum<T>::Real>(divisor);
  const auto width = static_cast<std::size_t>(rows.shape.row_numel());
  const auto* const from = static_cast<const T*>(rows.data);
  auto* to = static_cast<T*>(out.data);
  std::vector<Element> sum(width);
  for (std::size_t i = 0; i < entries.size(); to += width) {
    const std::int64_t index = entries[i].index;
    std::ranges::fill(sum, Element(0));
    for (; i < entries.size() && entries[i].index == index; ++i) {
      const T* const row = from + static_cast<std::size_t>(entries[i].row) * width;
      for (std::size_t k = 0; k < width; ++k) sum[k] += static_cast<Element>(row[k]);
    }
    for (std::size_t k = 0; k < width; ++k) to[k] = T(sum[k] / by);
  }
}

/// Writes each distinct index once.
template <typename T>
void write_indices(const std::vector<Entry>& entries, T* out) {
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (i == 0 || entries[i].index != entries[i - 1].index)
      *out++ = static_cast<T>(entries[i].index);
}

}  // namespace
}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

// All ranks check the gathered arguments of all ranks, because a rank that refused alone would
// leave its peers waiting.
SparseRows all_reduce_rows(ProcessGroup& group, const ConstTensorView& indices,
                           const ConstTensorView& values, const SparseRowsOptions& sparse,
                           const RowLayout& rows, const CallOptions& options) {
  const std::array<ConstTensorView, 2> mine{indices, values};
  const auto all = all_gather_rows(group, std::span(mine), rows, options);
  const Tensor& keys = all.data[0];
  const Tensor& all_values = all.data[1];
  if (keys.shape().ndim() != 1 || (keys.dtype() != DType::i32 && keys.dtype() != DType::i64))
    failf(Errc::invalid_argument,
          "all_reduce_rows: indices are {} {}; they must be [n] of i32 or i64",
          name_of(keys.dtype()), to_string(keys.shape()));
  const double divisor = sparse.divisor == 0 ? group.size() : sparse.divisor;
  if (!(divisor > 0) || std::isinf(divisor))
    failf(Errc::invalid_argument,
          "all_reduce_rows: divisor is {}; it must be > 0, or 0 for the number of ranks",
          sparse.divisor);

  Memory& memory = options.memory != nullptr ? *options.memory : group.memory();
  const Stream stream = options.stream;
  std::array<Tensor, 2> copies;
  const ConstTensorView host_keys = on_host(memory, keys, stream, copies[0]);
  const ConstTensorView host_values = on_host(memory, all_values, stream, copies[1]);
  const auto entries = sorted_entries(host_keys, all.rows, sparse.num_rows);
  std::int64_t m = 0;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (i == 0 || entries[i].index != entries[i - 1].index) ++m;

  Memory& made_in = memory.device().type == DeviceType::cpu ? memory : host_memory();
  Tensor indices_out(made_in, {m}, keys.dtype());
  Tensor values_out(made_in, all_values.shape().with_rows(m), all_values.dtype());
  if (keys.dtype() == DType::i64)
    write_indices(entries, static_cast<std::int64_t*>(indices_out.data()));
  else
    write_indices(entries, static_cast<std::int32_t*>(indices_out.data()));
  visit_dtype(all_values.dtype(), [&]<typename T>() {
    if constexpr (Addable<T>)
      add_rows<T>(entries, host_values, divisor, values_out);
    else
      failf(Errc::unsupported,
            "all_reduce_rows: values are {}; they must be f16, bf16, f32, f64 or complex",
            name_of(all_values.dtype()));
  });
  return {in_memory(memory, std::move(indices_out), stream),
          in_memory(memory, std::move(values_out), stream)};
}

}  // namespace ddp
}  // namespace tutti
