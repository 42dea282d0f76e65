#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <tutti/adapters/torch/detail/collective.hpp>
#include <tutti/adapters/torch/distributed.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/autograd.hpp>

// The collectives of <tutti/autograd.hpp> as functions of LibTorch's autograd, in host memory, with
// their gradients. docs/adapters.md.
//
// Derivatives of any order work, because a backward is a node of the graph. Inputs need not be
// contiguous. Results are new tensors.
//
// Every rank makes the same calls, forward and back: while gradients are recorded a result requires
// grad on every rank, even if its input does not, and every rank has to back-propagate through it.
// A rank that has no use for its part adds `out.sum() * 0` to its loss. The graph keeps the group.
// Collectives of the backward are called on the thread that calls backward().

namespace tutti::libtorch {

/// [n_r, ...] -> [sum n_r, ...]
inline at::Tensor all_gather_rows(ProcessGroup& group, const at::Tensor& local, GradScale scale,
                                  const RowLayout& layout = {}, const CallOptions& options = {}) {
  return detail::apply(autograd::all_gather_rows, group, local, scale, layout, options);
}

/// [sum n_r, ...] -> [n_rank, ...]; `op` is sum, avg or premul_sum.
inline at::Tensor reduce_scatter_rows(ProcessGroup& group, const at::Tensor& whole,
                                      const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                                      const CallOptions& options = {}) {
  return detail::apply(autograd::reduce_scatter_rows, group, whole, layout, op, options);
}
/// [sum send_rows, ...] -> [sum recv_rows, ...]. `received`, if not null, gets the number of rows
/// from each rank.
inline at::Tensor all_to_all_rows(ProcessGroup& group, const at::Tensor& in, Rows send_rows = {},
                                  Rows recv_rows = {}, const CallOptions& options = {},
                                  RowLayout* received = nullptr) {
  return detail::record(group, in, [&](const ConstTensorView& x) {
    auto done =
        autograd::all_to_all_rows(group, x, send_rows, recv_rows, detail::in_torch(options));
    if (received != nullptr) *received = std::move(done.layout);
    return autograd::Differentiable(std::move(done));
  });
}

/// `op` is sum, avg, premul_sum, min, max or prod.
inline at::Tensor all_reduce(ProcessGroup& group, const at::Tensor& in, ReduceOp op = ReduceOp::sum,
                             const CallOptions& options = {}) {
  if (op.kind == ReduceOp::Kind::prod)
    return AllGatherGrad::apply(in, &group, options).prod(0);  // torch's own, of all factors.
  return detail::apply(autograd::all_reduce, group, in, op, options);
}
/// For each element, the product over all other ranks.
inline at::Tensor product_of_others(ProcessGroup& group, const at::Tensor& in,
                                    const CallOptions& options = {}) {
  const at::Tensor all = AllGatherGrad::apply(in, &group, options);
  const std::int64_t rank = group.rank();
  return at::cat({all.narrow(0, 0, rank), all.narrow(0, rank + 1, group.size() - 1 - rank)})
      .prod(0);
}

/// The result is on root; other ranks get [0], which is part of the graph as well. `op` is sum, avg
/// or premul_sum.
inline at::Tensor reduce(ProcessGroup& group, const at::Tensor& in, int root,
                         ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  return detail::apply(autograd::reduce, group, in, root, op, options);
}
/// `in` has the same shape everywhere.
inline at::Tensor broadcast(ProcessGroup& group, const at::Tensor& in, int root,
                            const CallOptions& options = {}) {
  return detail::apply(autograd::broadcast, group, in, root, options);
}
inline at::Tensor gather_rows(ProcessGroup& group, const at::Tensor& local, int root,
                              const RowLayout& layout = {}, const CallOptions& options = {}) {
  return detail::apply(autograd::gather_rows, group, local, root, layout, options);
}
/// `layout` and `whole` are read on root only. On other ranks `layout` may be empty and `whole`
/// undefined.
inline at::Tensor scatter_rows(ProcessGroup& group, const at::Tensor& whole,
                               const RowLayout& layout, int root, const CallOptions& options = {}) {
  const bool read = group.rank() == root && whole.defined();
  const at::Tensor part = read ? whole : detail::no_part_of(whole);
  return detail::apply(autograd::scatter_rows, group, part, layout, root, options);
}

/// Returns a token [0]. Adding token.sum() to the loss makes the backward receive the gradient.
inline at::Tensor send(ProcessGroup& group, const at::Tensor& in, int peer, int tag = 0,
                       const CallOptions& options = {}) {
  return detail::apply(autograd::send, group, in, peer, tag, options);
}
/// `after`: a tensor whose backward must run after the backward of this receive, such as the token
/// of an earlier send. Second derivatives need it.
inline at::Tensor recv(ProcessGroup& group, at::IntArrayRef sizes, at::ScalarType dtype, int peer,
                       int tag = 0, const at::Tensor& after = {}, const CallOptions& options = {}) {
  return detail::record(group, detail::no_part_of(after), [&](const ConstTensorView&) {
    const Shape shape(std::span<const std::int64_t>(sizes.data(), sizes.size()));
    return autograd::recv(group, shape, from_torch(dtype), peer, tag, options);
  });
}
/// Sends rank r's tensor, of the same shape everywhere, to rank to[r].
inline at::Tensor permute(ProcessGroup& group, const at::Tensor& in, std::span<const int> to,
                          const CallOptions& options = {}) {
  return detail::apply(autograd::permute, group, in, to, options);
}

}  // namespace tutti::libtorch
