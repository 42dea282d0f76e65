#include "rows/all_to_all.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/call.hpp"
#include "group/validate.hpp"
#include "rows/row_views.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using Counts = std::vector<std::int64_t>;

void check_counts(const Counts& counts, const ConstTensorView& in, int ranks) {
  if (std::ssize(counts) != ranks)
    failf(Errc::invalid_argument, "send_rows has {} entries; the world size is {}", counts.size(),
          ranks);
  const RowLayout rows(counts);
  if (rows.total() != in.shape.rows())
    failf(Errc::invalid_argument, "in is {}, which has {} rows; send_rows {} has {}",
          to_string(in.shape), in.shape.rows(), to_string(rows), rows.total());
}

}  // namespace

Counts send_counts(const Rows& send_rows, const ConstTensorView& in, int ranks) {
  if (send_rows.listed()) return {send_rows.list().begin(), send_rows.list().end()};
  return Counts(static_cast<std::size_t>(ranks),
                send_rows.given() ? send_rows[0] : in.shape.rows() / ranks);
}

Counts exchange_counts(ProcessGroup& group, std::string_view caller, const ConstTensorView& in,
                       const Counts& send_rows, const CallOptions& options,
                       const CallerCheck& check) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto words =
      fmt::format("rows of {} [{}]", name_of(in.dtype), fmt::join(in.shape.row_dims(), ", "));
  Counts counts(ranks);
  const ConstTensorView mine(counts);
  const auto all = gather_host_arrays(group,
                                      {.caller = caller,
                                       .arrays = {&mine, 1},
                                       .check =
                                           [&](GatherRequest&) {
                                             if (check) check();
                                             check_array("in", in, group.memory().device());
                                             check_counts(send_rows, in, group.size());
                                             counts = send_rows;
                                           },
                                       .agree = words},
                                      options);
  const auto* const matrix = static_cast<const std::int64_t*>(all.data[0].data());
  for (std::size_t r = 0; r < ranks; ++r)
    counts[r] = matrix[r * ranks + static_cast<std::size_t>(group.rank())];
  return counts;
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {
namespace {

GatheredRows exchange(ProcessGroup& group, const ConstTensorView& array, const Rows& send_rows,
                      const CallOptions& options, Work* work) try {
  constexpr std::string_view caller = "all_to_all_rows";
  const auto in = internal::as_rows(array);
  const auto sent = internal::send_counts(send_rows, in, group.size());
  GatheredRows result;
  const auto received = internal::exchange_counts(group, caller, in, sent, options, {});
  const auto prepare = [&](Op& op) {
    result.rows = RowLayout(received);
    result.data = Tensor(internal::memory_of(group, options),
                         in.shape.with_rows(result.rows.total()), in.dtype, options.stream);
    op.out = result.data;
  };
  internal::call(group,
                 {.kind = Operation::all_to_all, .in = in, .rows = received, .send_rows = sent},
                 options, prepare, caller, work);
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace

GatheredRows all_to_all_rows(ProcessGroup& group, const ConstTensorView& in, Rows send_rows,
                             const CallOptions& options) {
  return exchange(group, in, send_rows, options, nullptr);
}

Pending<GatheredRows> all_to_all_rows_async(ProcessGroup& group, const ConstTensorView& in,
                                            Rows send_rows, const CallOptions& options) {
  Work work;
  auto rows = exchange(group, in, send_rows, options, &work);
  return {std::move(rows), std::move(work)};
}

}  // namespace tutti
