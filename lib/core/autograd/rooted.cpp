#include <tutti/autograd.hpp>

#include <utility>

#include "autograd/linear.hpp"
#include "rows/gather_arrays.hpp"
#include "rows/row_views.hpp"

// Collectives with a root. The gradient of a result that only root has is read on root only.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {
namespace {

using internal::Step;

Differentiable spread(const Step& step, const ConstTensorView& in, int root, ReduceOp op);

Differentiable reduce_to(const Step& step, const ConstTensorView& in, int root, ReduceOp op) {
  const bool at_root = step.group.rank() == root;
  Tensor out;
  const Op op_of_call{.kind = Operation::reduce, .in = in, .reduce = op, .root = root};
  step.call(op_of_call, [&](Op& call) {
    step.check_input(in);
    step.check_linear(op);
    out = step.make_result(at_root ? in.shape : Shape{0}, in.dtype);
    call.out = out;
  });
  if (!at_root) internal::pad_with_zeros(step, out, 0, {});
  return step.result<spread>("broadcast", in, std::move(out), root, op);
}

/// Broadcasts root's array, scaled: the transpose of reduce_to.
Differentiable spread(const Step& step, const ConstTensorView& in, int root, ReduceOp op) {
  auto& group = step.group;
  const bool at_root = group.rank() == root;
  const bool averages = internal::averages_on_device(group, op);
  const auto dtype = step.input_dtype(in);
  Tensor out;
  const auto prepare = [&](Op& call) {
    step.check_dtype(dtype);
    if (at_root) step.check_input(in);
    out = step.make_result(in.shape, dtype);
    if (averages)
      internal::pad_with_zeros(step, out, 0, at_root ? in : ConstTensorView());
    else if (at_root)
      internal::copy_rows(group, out.data(), in.data, in.bytes(), step.options.stream);
    call.in = out;
    call.out = out;
  };
  if (averages) {
    step.call({.kind = Operation::all_reduce, .reduce = op}, prepare);
  } else {
    step.call({.kind = Operation::broadcast, .root = root}, prepare);
    internal::scale_gradient(op, group.size(), out);
  }
  return step.result<reduce_to>("reduce", in, std::move(out), root, op);
}

DifferentiableRows collect(const Step& step, const ConstTensorView& local, int root,
                           const RowLayout& rows);

/// Scatters root's array by `rows` that all ranks know. Runs only in a backward.
Differentiable distribute(const Step& step, const ConstTensorView& whole, int root,
                          const RowLayout& rows) {
  const bool at_root = step.group.rank() == root;
  Tensor out;
  step.call({.kind = Operation::scatter, .rows = rows, .root = root}, [&](Op& call) {
    if (at_root) step.check_input(whole);
    out = step.make(step.transpose->to, step.transpose->dtype);
    if (at_root) call.in = whole;
    call.out = out;
  });
  return step.result<collect>("gather_rows", whole, std::move(out), root, rows);
}

/// Gathers the ranks' rows on root: the transpose of distribute.
DifferentiableRows collect(const Step& step, const ConstTensorView& local, int root,
                           const RowLayout& rows) {
  auto options = step.options;
  options.memory = step.memory();
  auto all = internal::gather_rows(step.group, local, root, rows, options,
                                   [&] { step.check_input(local); });
  return {step.result<distribute>("scatter_rows", local, std::move(all.data), root, all.rows),
          all.rows};
}

}  // namespace

Differentiable reduce(ProcessGroup& group, const ConstTensorView& in, int root, ReduceOp op,
                      const CallOptions& options) {
  return reduce_to({group, "reduce", options}, in, root, op);
}

Differentiable broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                         const CallOptions& options) {
  return spread({group, "broadcast", options}, in, root, ReduceOp::sum);
}

DifferentiableRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                               const RowLayout& rows, const CallOptions& options) {
  return collect({group, "gather_rows", options}, local, root, rows);
}

Differentiable scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                            const RowLayout& rows, int root, const CallOptions& options) {
  const Step step{group, "scatter_rows", options};
  // Only root knows the dtype; the check runs there.
  auto part = internal::scatter_rows(group, whole, rows, root, options,
                                     [&] { step.check_dtype(whole.dtype); });
  return step.result<collect>("gather_rows", group.rank() == root ? whole : ConstTensorView(),
                              std::move(part), root, RowLayout());
}

}  // namespace autograd
}  // namespace tutti
