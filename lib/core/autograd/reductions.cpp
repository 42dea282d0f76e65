#include <tutti/autograd.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "autograd/linear.hpp"
#include "kernels/gradients.hpp"
#include "kernels/reduce.hpp"

// Reductions to all ranks. The derivative of a nonlinear reduction is an array of weights.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {
namespace {

using internal::count_of;
using internal::Step;
using Kind = ReduceOp::Kind;
using Saved = std::shared_ptr<const Tensor>;

Differentiable weigh_sum(const Step& step, const ConstTensorView& in, ReduceOp op,
                         const Saved& weights);

/// Returns all_reduce(weights * in), or all_reduce(in) without weights.
Differentiable sum_weighted(const Step& step, const ConstTensorView& in, ReduceOp op,
                            const Saved& weights) {
  Tensor out;
  step.call({.kind = Operation::all_reduce, .in = in, .reduce = op}, [&](Op& call) {
    step.check_input(in);
    step.check_all_reduce(op);
    out = step.make(in.shape, in.dtype);
    call.out = out;
    if (weights == nullptr) return;
    internal::multiply(in.dtype, out.data(), in.data, weights->data(), count_of(out));
    call.in = out;
  });
  return step.result<weigh_sum>("all_reduce", in, std::move(out), op, weights);
}

/// Returns weights * all_reduce(in), times the factor of `op`: the transpose of sum_weighted.
Differentiable weigh_sum(const Step& step, const ConstTensorView& in, ReduceOp op,
                         const Saved& weights) {
  auto& group = step.group;
  const auto reduction = op.kind == Kind::avg ? ReduceOp::avg : ReduceOp::sum;
  Tensor out;
  step.call({.kind = Operation::all_reduce, .in = in, .reduce = reduction}, [&](Op& call) {
    step.check_input(in);
    out = step.make(in.shape, in.dtype);
    call.out = out;
  });
  if (op.kind == Kind::premul_sum) internal::scale_gradient(op, group.size(), out);
  if (weights != nullptr)
    internal::multiply(in.dtype, out.data(), out.data(), weights->data(), count_of(out));
  return step.result<sum_weighted>("all_reduce", in, std::move(out), op, weights);
}

Saved share(Tensor&& array) {
  return std::make_shared<const Tensor>(std::move(array));
}

Differentiable all_reduce_extreme(const Step& step, const ConstTensorView& in, ReduceOp op) {
  auto& group = step.group;
  Tensor out;
  Tensor ties;
  Tensor weights;
  step.call({.kind = Operation::all_reduce, .in = in, .reduce = op}, [&](Op& call) {
    step.check_input(in);
    step.check_host();
    out = step.make(in.shape, in.dtype);
    ties = step.make(in.shape, DType::i32);
    weights = step.make(in.shape, in.dtype);
    call.out = out;
  });
  auto* counts = static_cast<std::int32_t*>(ties.data());
  internal::mark_ties(in.dtype, in.data, out.data(), counts, count_of(out));
  group.all_reduce(ties, ReduceOp::sum, step.options);
  internal::share_ties(in.dtype, in.data, out.data(), counts, weights.data(), count_of(out));
  return step.result<weigh_sum>("all_reduce", in, std::move(out), ReduceOp::sum,
                                share(std::move(weights)));
}

/// Gathers the arrays [...] of all ranks to [W, elements], and allocates `out` and `weights` [...].
Tensor gather_factors(const Step& step, const ConstTensorView& in, Tensor& out,
                      Tensor* weights = nullptr) {
  Tensor all;
  step.call({.kind = Operation::all_gather, .rows = 1}, [&](Op& call) {
    step.check_input(in);
    step.check_host();
    all = step.make({step.group.size(), in.shape.numel()}, in.dtype);
    call.in = {in.data, in.dtype, {1, in.shape.numel()}, in.device};
    call.out = all;
    out = step.make(in.shape, in.dtype);
    if (weights != nullptr) *weights = step.make(in.shape, in.dtype);
  });
  return all;
}

internal::Factors factors_of(const Step& step, const Tensor& all) {
  return {all.data(), static_cast<std::size_t>(step.group.size()),
          static_cast<std::size_t>(step.group.rank()),
          static_cast<std::size_t>(all.shape().row_numel())};
}

/// Computes the product of all ranks and the product of all other ranks from one gather, without a
/// division, because factors may be zero.
Differentiable all_reduce_product(const Step& step, const ConstTensorView& in) {
  Tensor out;
  Tensor weights;
  const auto all = gather_factors(step, in, out, &weights);
  const auto factors = factors_of(step, all);
  std::vector<const void*> rows;
  for (std::size_t r = 0; r < factors.ranks; ++r)
    rows.push_back(static_cast<const std::byte*>(all.data()) + r * in.bytes());
  internal::fold(in.dtype, Kind::prod, out.data(), rows, {}, factors.n);
  internal::product_of_others(in.dtype, factors, weights.data());
  return step.result<weigh_sum>("all_reduce", in, std::move(out), ReduceOp::sum,
                                share(std::move(weights)));
}

/// Computes the derivative of product_of_others at the inputs `all` of the ranks. It is its own
/// transpose.
Differentiable others_gradient(const Step& step, const ConstTensorView& in, const Saved& all) {
  Tensor out;
  const auto gradients = gather_factors(step, in, out);
  internal::product_of_others_gradient(in.dtype, factors_of(step, *all), gradients.data(),
                                       out.data());
  return step.result<others_gradient>("product_of_others", in, std::move(out), all);
}

}  // namespace

Differentiable all_reduce(ProcessGroup& group, const ConstTensorView& in, ReduceOp op,
                          const CallOptions& options) {
  const Step step{group, "all_reduce", options};
  if (op.kind == Kind::prod) return all_reduce_product(step, in);
  if (op.kind == Kind::min || op.kind == Kind::max) return all_reduce_extreme(step, in, op);
  return sum_weighted(step, in, op, nullptr);
}

Differentiable product_of_others(ProcessGroup& group, const ConstTensorView& in,
                                 const CallOptions& options) {
  const Step step{group, "product_of_others", options};
  Tensor out;
  auto all = gather_factors(step, in, out);
  internal::product_of_others(in.dtype, factors_of(step, all), out.data());
  return step.result<others_gradient>("product_of_others", in, std::move(out),
                                      share(std::move(all)));
}

}  // namespace autograd
}  // namespace tutti
