#include <tutti/gather.hpp>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/call.hpp"
#include "group/validate.hpp"
#include "rows/gather_arrays.hpp"
#include "rows/metadata_exchange.hpp"
#include "rows/row_views.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

using internal::as_rows;
using internal::call;
using internal::copy_rows;
using internal::GatherRequest;
using internal::memory_of;
using internal::MetadataExchange;
using internal::rows_of;

template <typename T>
bool holds(double value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value == 0 || value == 1;
  } else if constexpr (std::is_integral_v<T>) {
    // 2^digits is the first value that does not fit. Both limits are exact in a double.
    return value == std::trunc(value) &&
           value >= static_cast<double>(std::numeric_limits<T>::min()) &&
           value < std::ldexp(1.0, std::numeric_limits<T>::digits);
  } else {
    return true;
  }
}

template <typename T>
T element_of(double value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::complex<double>>)
    return static_cast<T>(value);
  else
    return T(static_cast<float>(value));
}

/// Returns `value` as an element of `dtype`. Floats round it. @throws Error invalid_argument if an
/// integer or boolean cannot hold it.
std::vector<std::byte> element_of(DType dtype, double value) {
  std::vector<std::byte> bytes(size_of(dtype));
  visit_dtype(dtype, [&]<typename T>() {
    if (!holds<T>(value))
      internal::failf(Errc::invalid_argument, "fill {} is not a value of {}", value,
                      name_of(dtype));
    const auto element = element_of<T>(value);
    std::memcpy(bytes.data(), &element, sizeof element);
  });
  return bytes;
}

/// Fills one rank's block with the element, from row `rows` on.
void fill_behind(ProcessGroup& group, const TensorView& block, std::int64_t rows,
                 std::span<const std::byte> element, Stream stream) {
  const auto behind = rows_of(block, rows, block.shape.rows() - rows);
  std::vector<std::byte> padding;
  padding.reserve(behind.bytes());
  while (padding.size() < behind.bytes())
    padding.insert(padding.end(), element.begin(), element.end());
  copy_rows(group, behind.data, padding.data(), padding.size(), stream);
}

/// @throws Error count_overflow for more than INT64_MAX padded rows.
void check_padded(const ProcessGroup& group, const RowLayout& rows) {
  std::int64_t padded = 0;
  if (__builtin_mul_overflow(rows.max(), std::int64_t{group.size()}, &padded))
    internal::failf(Errc::count_overflow, "{} rows of the largest rank x {} ranks exceed 2^63 - 1",
                    rows.max(), group.size());
}

Shape with_ranks(int ranks, std::int64_t rows, const Shape& shape) {
  std::vector<std::int64_t> dims{ranks, rows};
  const auto row = shape.row_dims();
  dims.insert(dims.end(), row.begin(), row.end());
  return Shape(std::span<const std::int64_t>(dims));
}

PaddedRows gather_padded(ProcessGroup& group, const ConstTensorView& array, double fill,
                         const RowLayout& given, const CallOptions& options, Work* work) try {
  constexpr std::string_view caller = "all_gather_padded";
  const auto local = as_rows(array);
  std::vector<std::byte> element;
  const auto check = [&](GatherRequest&) {
    if (static_cast<int>(local.dtype) < dtype_count) element = element_of(local.dtype, fill);
    if (local.shape.ndim() == Shape::max_dims)
      internal::failf(
          Errc::invalid_argument,
          "the array has {} dimensions, so the result would have {}, more than a Shape supports",
          Shape::max_dims, Shape::max_dims + 1);
  };
  GatherRequest request{.caller = caller, .arrays = {&local, 1}, .check = check};
  std::optional<MetadataExchange> metadata;
  PaddedRows result;
  if (given.ranks() == 0) {
    metadata.emplace(group, request, options);
    result.rows = metadata->rows();
  } else {
    result.rows = given;
  }
  const auto& rows = result.rows;
  const auto stream = options.stream;
  const auto most = rows.max();
  const auto block_of = [&](int rank) {
    const auto bytes = static_cast<std::size_t>(most) * local.row_bytes();
    return TensorView(
        static_cast<std::byte*>(result.data.data()) + static_cast<std::size_t>(rank) * bytes,
        local.dtype, local.shape.with_rows(most), result.data.device());
  };
  const auto put = [&](int rank, const void* data) {
    const auto block = block_of(rank);
    // The fill precedes the gather, because on a device the host waits for the copies of the fill.
    // After the gather, it would wait for the gather too.
    fill_behind(group, block, rows[rank], element, stream);
    copy_rows(group, block.data, data, rows_of(block, 0, rows[rank]).bytes(), stream);
  };
  const auto allocate = [&] {
    result.data = Tensor(memory_of(group, options), with_ranks(group.size(), most, local.shape),
                         local.dtype, stream);
  };
  if (metadata && metadata->complete()) {
    allocate();
    for (int r = 0; r < group.size(); ++r) put(r, metadata->data(r, 0));
    return result;
  }
  const auto prepare = [&](Op& op) {
    if (!metadata) check(request);
    internal::check_array("the array", local, group.memory().device());
    internal::check_rows(group, local, rows);
    check_padded(group, rows);
    allocate();
    put(group.rank(), local.data);
    op.in = block_of(group.rank());
    op.out = {result.data.data(), local.dtype, local.shape.with_rows(most * group.size()),
              result.data.device()};
  };
  // The name of the call includes the rows, because ranks with different rows may have blocks
  // of equal size.
  auto mine = options;
  const auto name = fmt::format("{}{}{}", mine.name, mine.name.empty() ? "rows " : ", rows ",
                                fmt::join(rows.counts(), " "));
  if (!metadata) mine.name = name;
  call(group, {.kind = Operation::all_gather, .in = local}, mine, prepare, caller, work);
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace

PaddedRows all_gather_padded(ProcessGroup& group, const ConstTensorView& local, double fill,
                             const RowLayout& rows, const CallOptions& options) {
  return gather_padded(group, local, fill, rows, options, nullptr);
}

Pending<PaddedRows> all_gather_padded_async(ProcessGroup& group, const ConstTensorView& local,
                                            double fill, const RowLayout& rows,
                                            const CallOptions& options) {
  Work work;
  auto all = gather_padded(group, local, fill, rows, options, &work);
  return {std::move(all), std::move(work)};
}

}  // namespace tutti
