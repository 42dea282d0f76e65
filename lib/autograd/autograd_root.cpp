#include <tutti/autograd_root.hpp>

#include <utility>

#include "autograd/call.hpp"
#include "autograd/linear.hpp"
#include "group/refuse.hpp"
#include "rows/announcement.hpp"
#include "rows/gather_algo.hpp"

namespace tutti::autograd {
namespace {

using internal::AutogradCheck;
using internal::make_or_refuse;
using internal::make_or_tell;
using internal::memory_of;

/// Of the ranks that have no part in something.
Shape nothing() {
  return Shape::vector(0);
}

/// A copy of root's array, which is of this shape and dtype, on every rank.
template <typename Make>
Tensor spread(ProcessGroup& group, const AutogradCheck& check, const ConstTensorView& array,
              const Shape& shape, DType dtype, int root, const CallOptions& options,
              const Make& make) {
  const bool at_root = group.rank() == root;
  Tensor out;
  make_or_refuse(group, {.kind = Operation::broadcast, .root = root}, options, [&] {
    make();
    if (at_root) check.gradient(array, shape, dtype);
    out = Tensor(group.memory(), shape, dtype, options.stream);
  });
  if (at_root) internal::copy_rows(group, out.data(), array.data, array.bytes(), options.stream);
  group.broadcast(out, root, options);
  return out;
}

}  // namespace
}  // namespace tutti::autograd

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

Rooted reduce(ProcessGroup& group, const ConstTensorView& in, int root, ReduceOp op,
              const CallOptions& options) {
  const AutogradCheck check(group, "reduce");
  const auto checks = [&] {
    check.dtype(in.dtype);
    check.linear(op);
  };
  const bool at_root = group.rank() == root;
  RootContext context{op, root, in.shape, in.dtype, {}, at_root ? in.shape : nothing()};
  if (group.size() == 1) {
    checks();
    check.root(root);
    check.array(in);
    return {internal::reduce_alone(group, in, op, group.memory(), options.stream),
            std::move(context)};
  }
  Tensor out;
  make_or_refuse(group, {.kind = Operation::reduce, .reduce = op, .root = root}, options, [&] {
    checks();
    out = Tensor(group.memory(), context.out_shape, in.dtype, options.stream);
  });
  group.reduce(in, out, root, op, options);
  return {std::move(out), std::move(context)};
}

MaybeOwned reduce_vjp(ProcessGroup& group, const RootContext& context,
                      const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "reduce_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return internal::reduce_alone(group, grad_out, context.op, group.memory(), options.stream);
  }
  if (internal::averages_on_device(group, context.op)) {
    const bool at_root = group.rank() == context.root;
    Tensor grad;
    make_or_refuse(group, {.kind = Operation::all_reduce, .reduce = context.op}, options, [&] {
      if (at_root) check.gradient(grad_out, context.shape, context.dtype);
      grad = Tensor(group.memory(), context.shape, context.dtype, options.stream);
    });
    internal::average_parts(group, grad, 0, at_root ? grad_out : ConstTensorView(), options);
    return grad;
  }
  auto grad =
      spread(group, check, grad_out, context.shape, context.dtype, context.root, options, [] {});
  internal::scale_gradient(context.op, group.size(), grad);
  return grad;
}

Rooted broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                 const CallOptions& options) {
  const AutogradCheck check(group, "broadcast");
  RootContext context{ReduceOp::sum, root, in.shape, in.dtype, {}, in.shape};
  if (group.size() == 1) {
    check.dtype(in.dtype);
    check.root(root);
    check.array(in);
    return {MaybeOwned(in), std::move(context)};
  }
  return {
      spread(group, check, in, in.shape, in.dtype, root, options, [&] { check.dtype(in.dtype); }),
      std::move(context)};
}

MaybeOwned broadcast_vjp(ProcessGroup& group, const RootContext& context,
                         const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "broadcast_vjp");
  const auto& shape = context.shape;
  const auto root = context.root;
  if (group.size() == 1) {
    check.gradient(grad_out, shape, context.dtype);
    return MaybeOwned(grad_out);
  }
  Tensor out;
  make_or_refuse(group, {.kind = Operation::reduce, .root = root}, options, [&] {
    check.gradient(grad_out, shape, context.dtype);
    out = Tensor(group.memory(), shape, context.dtype, options.stream);
  });
  group.reduce(grad_out, out, root, ReduceOp::sum, options);
  if (group.rank() != root) internal::fill_with_zeros(group, out, options.stream);
  return out;
}

Rooted gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                   const GatherOptions& options) {
  const AutogradCheck check(group, "gather_rows");
  RootContext context{ReduceOp::sum, root, local.shape,
                      local.dtype,   {},   internal::as_rows(local).shape};
  if (group.size() == 1) {
    check.dtype(local.dtype);
    check.root(root);
    context.layout = RowLayout::equal(1, local.shape.rows());
    check.layout(local, options.layout != nullptr ? *options.layout : context.layout);
    return {MaybeOwned(internal::as_rows(local)), std::move(context)};
  }
  if (const auto refused = internal::problem_of([&] { check.dtype(local.dtype); })) {
    if (options.layout == nullptr)
      internal::Announcement(group, {.caller = "gather_rows", .root = root, .refused = refused},
                             options.call);
    internal::refuse_call(group, {.kind = Operation::gather, .root = root}, *refused, options.call);
  }
  auto rows = tutti::gather_rows(group, local, root, options);
  context.layout = std::move(rows.layout);
  context.out_shape = rows.data.shape();
  return {std::move(rows.data), std::move(context)};
}

MaybeOwned gather_rows_vjp(ProcessGroup& group, const RootContext& context,
                           const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "gather_rows_vjp");
  const auto& layout = context.layout;
  const auto root = context.root;
  if (group.size() == 1) {
    check.gradient(grad_out, context.out_shape, context.dtype);
    return MaybeOwned(
        ConstTensorView(grad_out.data, context.dtype, context.shape, grad_out.device));
  }
  const bool at_root = group.rank() == root;
  Tensor out;
  make_or_refuse(group, {.kind = Operation::scatter, .root = root}, options.call, [&] {
    if (at_root) check.gradient(grad_out, context.out_shape, context.dtype);
    out = Tensor(memory_of(group, options), context.shape, context.dtype, options.call.stream);
  });
  group.scatter(at_root ? grad_out : ConstTensorView(), out, root, layout, options.call);
  return out;
}

Rooted scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout* layout,
                    int root, const GatherOptions& options) {
  const AutogradCheck check(group, "scatter_rows");
  if (group.size() == 1) {
    check.root(root);
    check.dtype(whole.dtype);
    if (layout == nullptr) check.refuse(Errc::invalid_argument, "root has to pass the layout");
    check.layout(whole, *layout);
    return {MaybeOwned(whole),
            {ReduceOp::sum, root, whole.shape, whole.dtype, *layout, whole.shape}};
  }
  RootContext context{ReduceOp::sum, root, nothing()};
  if (group.rank() == root) {
    // Only root knows the dtype. Without a layout it is refused everywhere.
    make_or_tell([&] { check.dtype(whole.dtype); },
                 [&] { (void)tutti::scatter_rows(group, whole, nullptr, root, options); });
    context.shape = whole.shape;
    if (layout != nullptr) context.layout = *layout;
  }
  auto out = tutti::scatter_rows(group, whole, layout, root, options);
  context.dtype = out.dtype();
  context.out_shape = out.shape();
  return {std::move(out), std::move(context)};
}

MaybeOwned scatter_rows_vjp(ProcessGroup& group, const RootContext& context,
                            const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "scatter_rows_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return MaybeOwned(grad_out);
  }
  make_or_tell([&] { check.gradient(grad_out, context.out_shape, context.dtype); },
               [&](const Error& error) {
                 const internal::Announcement refusal(
                     group, {.caller = "gather_rows", .root = context.root, .refused = error},
                     options.call);
               });
  auto exchanged = options;
  exchanged.layout = nullptr;
  return tutti::gather_rows(group, grad_out, context.root, exchanged).data;
}

}  // namespace autograd
}  // namespace tutti
