#include <tutti/autograd_root.hpp>

#include <cstring>
#include <utility>
#include <vector>

#include "internal/announcement.hpp"
#include "internal/autograd_call.hpp"
#include "internal/autograd_linear.hpp"
#include "internal/gather_algo.hpp"

namespace tutti::autograd {
namespace {

using internal::AutogradCheck;
using internal::make_or_tell;
using internal::memory_of;
using internal::no_array;

/// Of the ranks that have no part in something.
Shape nothing() {
  return Shape::vector(0);
}

/// A copy of root's array, which is of this shape and dtype, on every rank.
Tensor spread(ProcessGroup& group, const AutogradCheck& check, const ConstTensorView& array,
              const Shape& shape, DType dtype, int root, const CallOptions& options) {
  const bool at_root = group.rank() == root;
  Tensor out;
  make_or_tell(
      [&] {
        if (at_root) check.gradient(array, shape, dtype);
        out = Tensor(group.memory(), shape, dtype, options.stream);
      },
      [&] { group.broadcast(no_array(shape, dtype), root, options); });
  if (at_root) internal::copy_rows(group, out.data(), array.data, array.bytes(), options.stream);
  group.broadcast(out, root, options);
  return out;
}

void fill_with_zeros(ProcessGroup& group, Tensor& out, Stream stream) {
  if (out.device().type == DeviceType::cpu) {
    std::memset(out.data(), 0, out.bytes());
    return;
  }
  const std::vector<std::byte> zeros(out.bytes());
  internal::copy_rows(group, out.data(), zeros.data(), zeros.size(), stream);
}

}  // namespace
}  // namespace tutti::autograd

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

Rooted reduce(ProcessGroup& group, const ConstTensorView& in, int root, ReduceOp op,
              const CallOptions& options) {
  const AutogradCheck check(group, "reduce");
  check.dtype(in.dtype);
  check.linear(op);
  const bool at_root = group.rank() == root;
  RootContext context{op, root, in.shape, in.dtype, {}, at_root ? in.shape : nothing()};
  if (group.size() == 1) {
    check.root(root);
    check.array(in);
    return {internal::reduce_alone(group, in, op, group.memory(), options.stream),
            std::move(context)};
  }
  Tensor out;
  make_or_tell([&] { out = Tensor(group.memory(), context.out_shape, in.dtype, options.stream); },
               [&] {
                 group.reduce(no_array(in.shape, in.dtype), no_array(in.shape, in.dtype), root, op,
                              options);
               });
  group.reduce(in, out, root, op, options);
  return {std::move(out), std::move(context)};
}

Value reduce_vjp(ProcessGroup& group, const RootContext& context, const ConstTensorView& grad_out,
                 const CallOptions& options) {
  const AutogradCheck check(group, "reduce_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return internal::reduce_alone(group, grad_out, context.op, group.memory(), options.stream);
  }
  auto grad = spread(group, check, grad_out, context.shape, context.dtype, context.root, options);
  internal::scale_gradient(context.op, group.size(), grad);
  return grad;
}

Rooted broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                 const CallOptions& options) {
  const AutogradCheck check(group, "broadcast");
  check.dtype(in.dtype);
  RootContext context{ReduceOp::sum, root, in.shape, in.dtype, {}, in.shape};
  if (group.size() == 1) {
    check.root(root);
    check.array(in);
    return {Value(in), std::move(context)};
  }
  return {spread(group, check, in, in.shape, in.dtype, root, options), std::move(context)};
}

Value broadcast_vjp(ProcessGroup& group, const RootContext& context,
                    const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "broadcast_vjp");
  const auto& shape = context.shape;
  const auto root = context.root;
  if (group.size() == 1) {
    check.gradient(grad_out, shape, context.dtype);
    return Value(grad_out);
  }
  Tensor out;
  make_or_tell(
      [&] {
        check.gradient(grad_out, shape, context.dtype);
        out = Tensor(group.memory(), shape, context.dtype, options.stream);
      },
      [&] {
        const auto none = no_array(shape, context.dtype);
        group.reduce(none, none, root, ReduceOp::sum, options);
      });
  group.reduce(grad_out, out, root, ReduceOp::sum, options);
  if (group.rank() != root) fill_with_zeros(group, out, options.stream);
  return out;
}

Rooted gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                   const GatherOptions& options) {
  const AutogradCheck check(group, "gather_rows");
  check.dtype(local.dtype);
  RootContext context{ReduceOp::sum, root, local.shape, local.dtype, {}, local.shape};
  if (group.size() == 1) {
    check.root(root);
    context.layout = RowLayout::equal(1, local.shape.rows());
    check.layout(local, options.layout != nullptr ? *options.layout : context.layout);
    return {Value(local), std::move(context)};
  }
  auto rows = tutti::gather_rows(group, local, root, options);
  context.layout = std::move(rows.layout);
  context.out_shape = rows.data.shape();
  return {std::move(rows.data), std::move(context)};
}

Value gather_rows_vjp(ProcessGroup& group, const RootContext& context,
                      const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "gather_rows_vjp");
  const auto& layout = context.layout;
  const auto root = context.root;
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return Value(grad_out);
  }
  const bool at_root = group.rank() == root;
  Tensor out;
  make_or_tell(
      [&] {
        if (at_root) check.gradient(grad_out, context.out_shape, context.dtype);
        out = Tensor(memory_of(group, options), context.shape, context.dtype, options.call.stream);
      },
      [&] {
        group.scatter(no_array(context.out_shape, context.dtype),
                      no_array(context.shape, context.dtype), root, layout, options.call);
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
    return {Value(whole), {ReduceOp::sum, root, whole.shape, whole.dtype, *layout, whole.shape}};
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

Value scatter_rows_vjp(ProcessGroup& group, const RootContext& context,
                       const ConstTensorView& grad_out, const GatherOptions& options) {
  const AutogradCheck check(group, "scatter_rows_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return Value(grad_out);
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
