#include "losses/over_ranks.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "group/call.hpp"
#include "rows/gather_arrays.hpp"

namespace tutti::internal::losses {
namespace {

/// Checks that each rank sent the expected number of rows; the code after it relies on the sizes.
template <typename Expected>
void check_counts(ProcessGroup& group, std::string_view loss, const RowLayout& rows,
                  const Expected& expected) {
  for (int r = 0; r < group.size(); ++r)
    if (rows[r] != expected(r))
      throw gather_error(
          Errc::mismatch, group, loss, r,
          fmt::format("rank {} sent {} rows, but {} were expected", r, rows[r], expected(r)));
}

}  // namespace

std::vector<double> sums_over_ranks(ProcessGroup* group, std::string_view loss,
                                    std::string_view words, std::size_t width,
                                    const std::function<void(std::span<double> mine)>& compute,
                                    const CallOptions& options) {
  std::vector<double> mine(width);
  if (group == nullptr) {
    named(loss, [&] { compute(mine); });
    return mine;
  }
  const ConstTensorView row(mine.data(), DType::f64, {1, static_cast<std::int64_t>(width)});
  const auto gathered = gather_host_arrays(*group,
                                           {.caller = loss,
                                            .arrays = {&row, 1},
                                            .check = [&](GatherRequest&) { compute(mine); },
                                            .agree = words},
                                           options);
  check_counts(*group, loss, gathered.rows, [](int) { return 1; });
  std::vector<double> sums(width);
  const auto all = gathered.data[0].values<double>();
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % width] += all[i];
  return sums;
}

RowQueue::Rows gather_queue(ProcessGroup* group, std::string_view loss, std::string_view words,
                            const RowQueue& queue, std::int64_t classes,
                            const CallOptions& options) {
  const auto& own = queue.own();
  if (group == nullptr) {
    named(loss, [&] { queue.check_world(0, 1); });
    return own;
  }
  const auto rows = std::ssize(own.targets);
  std::vector<ConstTensorView> arrays{
      {own.scores.data(), DType::f64, {rows, classes}}, own.targets, own.iid};
  if (queue.weighted()) arrays.emplace_back(own.weights);
  const auto state = fmt::format("classes {}, {}{}", classes, words, queue.state());
  const auto check = [&](GatherRequest&) { queue.check_world(group->rank(), group->size()); };
  const auto gathered = gather_host_arrays(
      *group, {.caller = loss, .arrays = arrays, .check = check, .agree = state}, options);
  check_counts(*group, loss, gathered.rows, [&](int r) { return queue.size_of(r); });
  const auto copy = [&]<typename T>(std::vector<T>& to, std::size_t array) {
    const auto values = std::as_const(gathered.data[array]).template values<T>();
    to.assign(values.begin(), values.end());
  };
  RowQueue::Rows by_rank;
  copy(by_rank.scores, 0);
  copy(by_rank.targets, 1);
  copy(by_rank.iid, 2);
  by_rank.weights.assign(by_rank.size(), 1);
  if (queue.weighted()) copy(by_rank.weights, 3);
  RowQueue::Rows all;
  std::vector<std::int64_t> next(static_cast<std::size_t>(group->size()));
  for (std::size_t r = 0; r < next.size(); ++r) next[r] = gathered.rows.offset(static_cast<int>(r));
  for (const auto& segment : queue.segments()) {
    auto& first = next[static_cast<std::size_t>(segment.rank)];
    const auto last = first + segment.count;
    all.append(by_rank, first, last, classes);
    first = last;
  }
  return all;
}

Tensor all_rows(ProcessGroup& group, const ConstTensorView& mine, const RowLayout& rows,
                const CallOptions& options) {
  Tensor all(host_memory(), mine.shape.with_rows(rows.total()), mine.dtype);
  host_call(group, {.kind = Operation::all_gather, .in = mine, .out = all, .rows = rows}, options);
  return all;
}

Tensor move_rows(ProcessGroup& group, const ConstTensorView& mine, const RowLayout& from,
                 const RowLayout& to, const CallOptions& options) {
  // The rows that slice `r` of a shares with slice `q` of b.
  const auto common = [](const RowLayout& a, int r, const RowLayout& b, int q) {
    return std::max<std::int64_t>(
        0, std::min(a.offset(r) + a[r], b.offset(q) + b[q]) - std::max(a.offset(r), b.offset(q)));
  };
  std::vector<std::int64_t> send;
  std::vector<std::int64_t> receive;
  for (int r = 0; r < group.size(); ++r) {
    send.push_back(common(from, group.rank(), to, r));
    receive.push_back(common(from, r, to, group.rank()));
  }
  Tensor own(host_memory(), mine.shape.with_rows(to[group.rank()]), mine.dtype);
  host_call(
      group,
      {.kind = Operation::all_to_all, .in = mine, .out = own, .rows = receive, .send_rows = send},
      options);
  return own;
}

}  // namespace tutti::internal::losses
