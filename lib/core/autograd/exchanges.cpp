#include <tutti/autograd.hpp>

#include <utility>
#include <vector>

#include "autograd/linear.hpp"
#include "rows/all_to_all.hpp"
#include "rows/gather_arrays.hpp"
#include "rows/row_views.hpp"

// Exchanges of rows between all ranks.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {
namespace {

using internal::Step;

std::size_t own_bytes_offset(const Step& step, const RowLayout& rows, const ConstTensorView& part) {
  return static_cast<std::size_t>(rows.offset(step.group.rank())) * part.row_bytes();
}

Differentiable gather_scaled(const Step& step, const ConstTensorView& local, const RowLayout& rows,
                             ReduceOp op);

Differentiable reduce_scatter(const Step& step, const ConstTensorView& whole, const RowLayout& rows,
                              ReduceOp op) {
  auto& group = step.group;
  // The call refuses `rows` that contradict the group or `whole`.
  const auto own = group.rank() < rows.ranks() ? rows[group.rank()] : 0;
  Tensor out;
  const Op scattering{.kind = Operation::reduce_scatter, .in = whole, .rows = rows, .reduce = op};
  step.call(scattering, [&](Op& call) {
    step.check_input(whole);
    step.check_linear(op);
    out = step.make_result(whole.shape.with_rows(own), whole.dtype);
    call.out = out;
  });
  return step.result<gather_scaled>("all_gather_rows", whole, std::move(out), rows, op);
}

/// Gathers rows and scales them: the transpose of reduce_scatter. Runs only in a backward.
Differentiable gather_scaled(const Step& step, const ConstTensorView& local, const RowLayout& rows,
                             ReduceOp op) {
  auto& group = step.group;
  const bool averages = internal::averages_on_device(group, op);
  Tensor out;
  const auto prepare = [&](Op& call) {
    step.check_input(local);
    out = step.make(step.transpose->to, local.dtype);
    call.in = internal::as_rows(local);
    call.out = out;
    if (!averages) return;
    internal::pad_with_zeros(step, out, own_bytes_offset(step, rows, local), local);
    call.in = out;
  };
  if (averages) {
    step.call({.kind = Operation::all_reduce, .reduce = op}, prepare);
  } else {
    step.call({.kind = Operation::all_gather, .rows = rows}, prepare);
    internal::scale_gradient(op, group.size(), out);
  }
  return step.result<reduce_scatter>("reduce_scatter_rows", local, std::move(out), rows, op);
}

Differentiable pad(const Step& step, const ConstTensorView& part, const RowLayout& rows);

/// Takes this rank's rows of the array that this rank passes. Does not communicate. Runs only in a
/// backward.
Differentiable slice(const Step& step, const ConstTensorView& whole, const RowLayout& rows) {
  step.check_input(whole);
  Tensor out = step.make(step.transpose->to, whole.dtype);
  const auto rank = step.group.rank();
  const auto own = internal::rows_of(whole, rows.offset(rank), rows[rank]);
  internal::copy_rows(step.group, out.data(), own.data, own.bytes(), step.options.stream);
  return step.result<pad>({}, whole, std::move(out), rows);
}

/// Places this rank's rows among zeros: the transpose of slice.
Differentiable pad(const Step& step, const ConstTensorView& part, const RowLayout& rows) {
  step.check_input(part);
  Tensor out = step.make(step.transpose->to, part.dtype);
  internal::pad_with_zeros(step, out, own_bytes_offset(step, rows, part), part);
  return step.result<slice>({}, part, std::move(out), rows);
}

using Counts = std::vector<std::int64_t>;

/// Sends blocks between all ranks. The transpose is the same function with the counts swapped.
Differentiable exchange(const Step& step, const ConstTensorView& in, const Counts& send_rows,
                        const Counts& recv_rows) {
  Tensor out;
  const Op exchanging{
      .kind = Operation::all_to_all, .in = in, .rows = recv_rows, .send_rows = send_rows};
  step.call(exchanging, [&](Op& call) {
    step.check_input(in);
    out = step.make_result(in.shape.with_rows(RowLayout(recv_rows).total()), in.dtype);
    call.out = out;
  });
  return step.result<exchange>("all_to_all_rows", in, std::move(out), recv_rows, send_rows);
}

}  // namespace

DifferentiableRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                                   GradScale scale, const RowLayout& known,
                                   const CallOptions& options) {
  const Step step{group, "all_gather_rows", options};
  const auto name = step.name();
  auto all =
      internal::gather_arrays(group,
                              {.caller = name,
                               .arrays = {&local, 1},
                               .check = [&](internal::GatherRequest&) { step.check_input(local); }},
                              known, options);
  auto& rows = all.rows;
  auto& value = all.data[0];
  if (scale == GradScale::local_slice)
    return {step.result<slice>({}, local, std::move(value), rows), rows};
  const auto op = scale == GradScale::mean ? ReduceOp::avg : ReduceOp::sum;
  return {step.result<reduce_scatter>("reduce_scatter_rows", local, std::move(value), rows, op),
          rows};
}

Differentiable reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                                   const RowLayout& rows, ReduceOp op, const CallOptions& options) {
  return reduce_scatter({group, "reduce_scatter_rows", options}, whole, rows, op);
}

DifferentiableRows all_to_all_rows(ProcessGroup& group, const ConstTensorView& in, Rows send_rows,
                                   Rows recv_rows, const CallOptions& options) {
  const Step step{group, "all_to_all_rows", options};
  const auto sent = internal::send_counts(send_rows, in, group.size());
  auto received = send_rows.given() && !recv_rows.given()
                      ? internal::exchange_counts(group, step.name(), in, sent, options,
                                                  [&] { step.check_input(in); })
                      : internal::send_counts(recv_rows, in, group.size());
  auto done = exchange(step, in, sent, received);
  return {std::move(done), RowLayout(received)};
}

}  // namespace autograd
}  // namespace tutti
