#include "ddp/row_average.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "kernels/reduce.hpp"

namespace tutti::ddp {
namespace {

bool is_number_of_rows(double rows) noexcept {
  return rows >= 0 && !std::isinf(rows);
}

}  // namespace

RowAverage::RowAverage(ProcessGroup& group, const ReducerOptions& options)
    : group_(group),
      on_(options.average_over_rows),
      call_{.timeout = options.timeout,
            .order_fixed = options.order_fixed,
            .reproducible = options.reproducible,
            .name = "ddp rows"} {}

void RowAverage::add(std::optional<double> rows) noexcept {
  if ((!rows && !on_) || !is_number_of_rows(mine_)) return;
  const double more = rows.value_or(std::numeric_limits<double>::quiet_NaN());
  mine_ = is_number_of_rows(more) ? mine_ + more : more;
}

std::string RowAverage::problem(bool has_rows) const {
  if (has_rows && !on_)
    return "finish(rows) was called without average_over_rows; set the option on all ranks";
  if (!has_rows && on_)
    return "finish() was called with average_over_rows; pass the number of this rank's rows to "
           "finish(rows)";
  if (is_number_of_rows(mine_)) return {};
  return fmt::format(
      "the number of rows is {}; pass one that is 0 or more, and finite, to every finish(), within "
      "no_sync() too",
      mine_);
}

void RowAverage::launch(bool counts) {
  all_ = counts ? mine_ : 0;
  work_ = group_.all_reduce_async(TensorView(&all_, DType::f64, {1}), ReduceOp::sum, call_);
}

void RowAverage::divide(const TensorView& gradient, double divided) const {
  if (gradient.bytes() == 0) return;
  if (all_ == 0) {
    std::memset(gradient.data, 0, gradient.bytes());
    return;
  }
  const void* const in = gradient.data;
  const double factor = divided / all_;
  internal::fold(gradient.dtype, ReduceOp::Kind::premul_sum, gradient.data, {&in, 1}, {&factor, 1},
                 static_cast<std::size_t>(gradient.shape.numel()));
}

}  // namespace tutti::ddp
