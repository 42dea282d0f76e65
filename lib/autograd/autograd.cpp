#include <tutti/autograd.hpp>

#include <string_view>
#include <utility>

#include "autograd/call.hpp"
#include "autograd/linear.hpp"
#include "group/refuse.hpp"
#include "rows/gather_algo.hpp"
#include "rows/gather_arrays.hpp"
#include "values/fail.hpp"

// How each vjp follows from its forward: docs/gradients.md.

namespace tutti::autograd {
namespace {

using internal::AutogradCheck;
using internal::make_or_refuse;
using internal::memory_of;

ProcessGroup& existing(ProcessGroup* group, std::string_view function) {
  if (group == nullptr)
    internal::failf(Errc::not_initialized,
                    "autograd::{}: there is no group; call init() or ProcessGroup::create() first",
                    function);
  return *group;
}

}  // namespace
}  // namespace tutti::autograd

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

AllGathered all_gather_rows(ProcessGroup& group, const ConstTensorView& local, GatherGrad grad,
                            const GatherOptions& options) {
  const AutogradCheck check(group, "all_gather_rows");
  AllGatherContext context{.grad = grad, .shape = local.shape, .dtype = local.dtype};
  if (group.size() == 1) {
    check.dtype(local.dtype);
    context.layout = RowLayout::equal(1, local.shape.rows());
    check.layout(local, options.layout != nullptr ? *options.layout : context.layout);
    return {MaybeOwned(internal::as_rows(local)), std::move(context)};
  }
  auto all =
      internal::gather_arrays(group,
                              {.caller = "autograd::all_gather_rows",
                               .arrays = {&local, 1},
                               .refused = internal::problem_of([&] { check.dtype(local.dtype); })},
                              options);
  context.layout = std::move(all.layout);
  return {std::move(all.data[0]), std::move(context)};
}

MaybeOwned all_gather_rows_vjp(ProcessGroup& group, const AllGatherContext& context,
                               const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "all_gather_rows_vjp");
  const auto& layout = context.layout;
  const auto stream = options.call.stream;
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape.with_rows(layout.total()), context.dtype);
    return MaybeOwned(
        ConstTensorView(grad_out.data, context.dtype, context.shape, grad_out.device));
  }
  Tensor out;
  const auto make = [&] {
    check.gradient(grad_out, context.shape.with_rows(layout.total()), context.dtype);
    out = Tensor(memory_of(group, options), context.shape, context.dtype, stream);
  };
  if (context.grad == GatherGrad::local_slice) {
    make();
    const auto rank = group.rank();
    const auto own = internal::rows_of(grad_out, layout.offset(rank), layout[rank]);
    internal::copy_rows(group, out.data(), own.data, own.bytes(), stream);
    return out;
  }
  const auto op = context.grad == GatherGrad::mean ? ReduceOp::avg : ReduceOp::sum;
  make_or_refuse(group, {.kind = Operation::reduce_scatter, .reduce = op}, options.call, make);
  group.reduce_scatter(grad_out, out, layout, op, options.call);
  return out;
}

AllGathered all_gather_with_grad(ProcessGroup* group, const ConstTensorView& local, GatherGrad grad,
                                 const GatherOptions& options) {
  return all_gather_rows(existing(group, "all_gather_with_grad"), local, grad, options);
}

MaybeOwned all_gather_no_grad(ProcessGroup* maybe, const ConstTensorView& local,
                              const GatherOptions& options) {
  ProcessGroup& group = existing(maybe, "all_gather_no_grad");
  if (group.size() > 1) return tutti::all_gather_rows(group, local, options).data;
  const auto own = RowLayout::equal(1, local.shape.rows());
  AutogradCheck(group, "all_gather_no_grad")
      .layout(local, options.layout != nullptr ? *options.layout : own);
  return MaybeOwned(local);
}

ReduceScattered reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                                    const RowLayout& layout, ReduceOp op,
                                    const GatherOptions& options) {
  const AutogradCheck check(group, "reduce_scatter_rows");
  const auto checks = [&] {
    check.dtype(whole.dtype);
    check.linear(op);
  };
  ReduceScatterContext context{layout, op, whole.shape, whole.dtype};
  const auto stream = options.call.stream;
  if (group.size() == 1) {
    checks();
    check.layout(whole, layout);
    return {internal::reduce_alone(group, whole, op, memory_of(group, options), stream),
            std::move(context)};
  }
  // A layout that contradicts the group or `whole` is refused by the call.
  const auto rows = group.rank() < layout.ranks() ? layout[group.rank()] : 0;
  Tensor out;
  make_or_refuse(group, {.kind = Operation::reduce_scatter, .reduce = op}, options.call, [&] {
    checks();
    out = Tensor(memory_of(group, options), whole.shape.with_rows(rows), whole.dtype, stream);
  });
  group.reduce_scatter(whole, out, layout, op, options.call);
  return {std::move(out), std::move(context)};
}

MaybeOwned reduce_scatter_rows_vjp(ProcessGroup& group, const ReduceScatterContext& context,
                                   const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "reduce_scatter_rows_vjp");
  const auto& layout = context.layout;
  const auto stream = options.call.stream;
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return internal::reduce_alone(group, grad_out, context.op, memory_of(group, options), stream);
  }
  const bool averages = internal::averages_on_device(group, context.op);
  Tensor out;
  make_or_refuse(
      group, {.kind = averages ? Operation::all_reduce : Operation::all_gather}, options.call, [&] {
        check.gradient(grad_out, context.shape.with_rows(layout[group.rank()]), context.dtype);
        out = Tensor(memory_of(group, options), context.shape, context.dtype, stream);
      });
  if (averages) {
    const auto at = static_cast<std::size_t>(layout.offset(group.rank())) * grad_out.row_bytes();
    internal::average_parts(group, out, at, grad_out, options.call);
    return out;
  }
  tutti::all_gather_rows(group, grad_out, out, layout, options);
  internal::scale_gradient(context.op, group.size(), out);
  return out;
}

Exchanged all_to_all_rows(ProcessGroup& group, const ConstTensorView& in,
                          std::span<const std::int64_t> send_rows,
                          std::span<const std::int64_t> recv_rows, const GatherOptions& options) {
  const AutogradCheck check(group, "all_to_all_rows");
  AllToAllContext context{{send_rows.begin(), send_rows.end()},
                          {recv_rows.begin(), recv_rows.end()},
                          in.shape,
                          in.dtype};
  if (group.size() == 1) {
    check.dtype(in.dtype);
    check.layout(in, RowLayout(send_rows));
    check.layout(in, RowLayout(recv_rows));
    return {MaybeOwned(in), std::move(context)};
  }
  Tensor out;
  make_or_refuse(group, {.kind = Operation::all_to_all}, options.call, [&] {
    check.dtype(in.dtype);
    out = Tensor(memory_of(group, options), in.shape.with_rows(RowLayout(recv_rows).total()),
                 in.dtype, options.call.stream);
  });
  group.all_to_all(in, out, send_rows, recv_rows, options.call);
  return {std::move(out), std::move(context)};
}

MaybeOwned all_to_all_rows_vjp(ProcessGroup& group, const AllToAllContext& context,
                               const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "all_to_all_rows_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return MaybeOwned(grad_out);
  }
  Tensor out;
  make_or_refuse(group, {.kind = Operation::all_to_all}, options.call, [&] {
    check.gradient(grad_out, context.shape.with_rows(RowLayout(context.recv_rows).total()),
                   context.dtype);
    out = Tensor(memory_of(group, options), context.shape, context.dtype, options.call.stream);
  });
  group.all_to_all(grad_out, out, context.recv_rows, context.send_rows, options.call);
  return out;
}

}  // namespace autograd
}  // namespace tutti
