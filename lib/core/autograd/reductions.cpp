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

/// Computes the product of all ranks and the product of all other ranks from one gather, without a
/// division, because factors may be zero.
Differentiable all_reduce_product(const Step& step, const ConstTensorView& in) {
  const int size = step.group.size();
  Tensor all;
  Tensor out;
  Tensor weights;
  step.call({.kind = Operation::all_gather, .rows = 1}, [&](Op& call) {
    step.check_input(in);
    step.check_host();
    all = step.make({size, in.shape.numel()}, in.dtype);
    call.in = {in.data, in.dtype, {1, in.shape.numel()}, in.device};
    call.out = all;
    out = step.make(in.shape, in.dtype);
    weights = step.make(in.shape, in.dtype);
  });
  const auto* factors = static_cast<const std::byte*>(all.data());
  std::vector<const void*> rows;
  for (int r = 0; r < size; ++r) rows.push_back(factors + static_cast<std::size_t>(r) * in.bytes());
  internal::fold(in.dtype, Kind::prod, out.data(), rows, {}, count_of(out));
  rows.erase(rows.begin() + step.group.rank());
  if (rows.empty())
    internal::fill_identity(in.dtype, Kind::prod, weights.data(), count_of(out));
  else
    internal::fold(in.dtype, Kind::prod, weights.data(), rows, {}, count_of(out));
  return step.result<weigh_sum>("all_reduce", in, std::move(out), ReduceOp::sum,
                                share(std::move(weights)));
}

}  // namespace

Differentiable all_reduce(ProcessGroup& group, const ConstTensorView& in, ReduceOp op,
                          const CallOptions& options) {
  const Step step{group, "all_reduce", options};
  if (op.kind == Kind::prod) return all_reduce_product(step, in);
  if (op.kind == Kind::min || op.kind == Kind::max) return all_reduce_extreme(step, in, op);
  return sum_weighted(step, in, op, nullptr);
}

}  // namespace autograd
}  // namespace tutti
