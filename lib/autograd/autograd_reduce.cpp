#include <tutti/autograd_reduce.hpp>

#include <utility>
#include <vector>

#include "autograd/call.hpp"
#include "autograd/linear.hpp"
#include "group/refuse.hpp"
#include "kernels/gradients.hpp"
#include "kernels/reduce.hpp"

namespace tutti::autograd {
namespace {

using internal::AutogradCheck;
using internal::count_of;
using internal::make_or_refuse;
using Kind = ReduceOp::Kind;

/// What every rank has, [W, elements]: `array`, which is of this shape and dtype. `make` checks and
/// makes what else this rank needs.
template <typename Make>
Tensor gather_all(ProcessGroup& group, const AutogradCheck& check, const ConstTensorView& array,
                  const Shape& shape, DType dtype, const CallOptions& options, const Make& make) {
  const auto n = shape.numel();
  Tensor all;
  const ConstTensorView flat(array.data, array.dtype, {1, array.shape.numel()}, array.device);
  make_or_refuse(group, {.kind = Operation::all_gather}, options, [&] {
    make();
    check.gradient(array, shape, dtype);
    all = Tensor(group.memory(), {group.size(), n}, dtype, options.stream);
  });
  group.all_gather(flat, all, 1, options);
  return all;
}

internal::Factors factors_of(const ProcessGroup& group, const Tensor& all) {
  return {all.data(), static_cast<std::size_t>(group.size()),
          static_cast<std::size_t>(group.rank()),
          static_cast<std::size_t>(all.shape().row_numel())};
}

/// The product of all ranks, and of all others: from one gather, so that zeros need no division.
AllReduced all_reduce_product(ProcessGroup& group, const AutogradCheck& check,
                              const ConstTensorView& in, const CallOptions& options) {
  Tensor out;
  Tensor weights;
  const auto all = gather_all(group, check, in, in.shape, in.dtype, options, [&] {
    check.dtype(in.dtype);
    check.host();
    out = Tensor(group.memory(), in.shape, in.dtype, options.stream);
    weights = Tensor(group.memory(), in.shape, in.dtype, options.stream);
  });
  const auto factors = factors_of(group, all);
  std::vector<const void*> rows;
  for (std::size_t r = 0; r < factors.ranks; ++r)
    rows.push_back(static_cast<const std::byte*>(all.data()) + r * factors.n * size_of(in.dtype));
  internal::fold(in.dtype, Kind::product, out.data(), rows, {}, factors.n);
  internal::product_of_others(in.dtype, factors, weights.data());
  return {std::move(out), {ReduceOp::product, std::move(weights), in.shape, in.dtype}};
}

AllReduced all_reduce_extreme(ProcessGroup& group, const AutogradCheck& check,
                              const ConstTensorView& in, ReduceOp op, const CallOptions& options) {
  auto& memory = group.memory();
  Tensor out;
  Tensor ties;
  Tensor weights;
  make_or_refuse(group, {.kind = Operation::all_reduce, .reduce = op}, options, [&] {
    check.dtype(in.dtype);
    check.host();
    out = Tensor(memory, in.shape, in.dtype, options.stream);
    ties = Tensor(memory, in.shape, DType::i32, options.stream);
    weights = Tensor(memory, in.shape, in.dtype, options.stream);
  });
  group.all_reduce(in, out, op, options);
  auto* counts = static_cast<std::int32_t*>(ties.data());
  internal::mark_ties(in.dtype, in.data, out.data(), counts, count_of(out));
  group.all_reduce(ties, ReduceOp::sum, options);
  internal::share_ties(in.dtype, in.data, out.data(), counts, weights.data(), count_of(out));
  return {std::move(out), {op, std::move(weights), in.shape, in.dtype}};
}

/// all_reduce of an array of this shape and dtype.
template <typename Make>
Tensor reduced(ProcessGroup& group, const AutogradCheck& check, const ConstTensorView& array,
               const Shape& shape, DType dtype, ReduceOp op, const CallOptions& options,
               const Make& make) {
  Tensor out;
  make_or_refuse(group, {.kind = Operation::all_reduce, .reduce = op}, options, [&] {
    make();
    check.gradient(array, shape, dtype);
    out = Tensor(group.memory(), shape, dtype, options.stream);
  });
  group.all_reduce(array, out, op, options);
  return out;
}

}  // namespace
}  // namespace tutti::autograd

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

AllReduced all_reduce(ProcessGroup& group, const ConstTensorView& in, ReduceOp op,
                      const CallOptions& options) {
  using enum ReduceOp::Kind;
  const AutogradCheck check(group, "all_reduce");
  const auto checks = [&] {
    check.dtype(in.dtype);
    check.op(op, {sum, avg, premul_sum, min, max, product});
    if (op.kind != sum && op.kind != avg) check.host();
  };
  if (group.size() == 1) {
    checks();
    check.array(in);
    return {internal::reduce_alone(group, in, op, group.memory(), options.stream),
            {op, {}, in.shape, in.dtype}};
  }
  if (op.kind == product) return all_reduce_product(group, check, in, options);
  if (op.kind == min || op.kind == max) return all_reduce_extreme(group, check, in, op, options);
  return {reduced(group, check, in, in.shape, in.dtype, op, options, checks),
          {op, {}, in.shape, in.dtype}};
}

MaybeOwned all_reduce_vjp(ProcessGroup& group, const AllReduceContext& context,
                          const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "all_reduce_vjp");
  const auto op = context.op;
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return internal::reduce_alone(group, grad_out, op, group.memory(), options.stream);
  }
  auto grad = reduced(group, check, grad_out, context.shape, context.dtype,
                      op.kind == Kind::avg ? ReduceOp::avg : ReduceOp::sum, options, [] {});
  if (op.kind == Kind::premul_sum) internal::scale_gradient(op, group.size(), grad);
  if (context.weights.data() != nullptr)
    internal::multiply(grad.dtype(), grad.data(), grad.data(), context.weights.data(),
                       count_of(grad));
  return grad;
}

ProductOfOthers product_of_others(ProcessGroup& group, const ConstTensorView& in,
                                  const CallOptions& options) {
  const AutogradCheck check(group, "product_of_others");
  const auto checks = [&] {
    check.dtype(in.dtype);
    check.host();
  };
  ProductContext context{{}, in.shape, in.dtype};
  if (group.size() == 1) {
    checks();
    check.array(in);
    Tensor ones(group.memory(), in.shape, in.dtype, options.stream);
    internal::fill_identity(in.dtype, Kind::product, ones.data(), count_of(ones));
    return {std::move(ones), std::move(context)};
  }
  Tensor out;
  context.all = gather_all(group, check, in, in.shape, in.dtype, options, [&] {
    checks();
    out = Tensor(group.memory(), in.shape, in.dtype, options.stream);
  });
  internal::product_of_others(in.dtype, factors_of(group, context.all), out.data());
  return {std::move(out), std::move(context)};
}

MaybeOwned product_of_others_vjp(ProcessGroup& group, const ProductContext& context,
                                 const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "product_of_others_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    Tensor zeros(group.memory(), context.shape, context.dtype, options.stream);
    internal::fill_identity(context.dtype, Kind::sum, zeros.data(), count_of(zeros));
    return zeros;
  }
  Tensor out;
  const auto grads = gather_all(group, check, grad_out, context.shape, context.dtype, options, [&] {
    out = Tensor(group.memory(), context.shape, context.dtype, options.stream);
  });
  internal::product_of_others_gradient(context.dtype, factors_of(group, context.all), grads.data(),
                                       out.data());
  return out;
}

}  // namespace autograd
}  // namespace tutti
