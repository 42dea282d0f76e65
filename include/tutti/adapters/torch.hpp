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

// The collectives of <tutti/autograd.hpp> as functions of LibTorch's autograd, with their
// gradients. docs/adapters.md.
//
// Tensors are on the group's device, and so are results, in torch's memory. On a CUDA device calls
// run on torch's current stream, forward and back; the program leaves out options.stream. A tensor
// on another device is Error invalid_argument, which names both.
//
// Derivatives of any order work, because a backward is a node of the graph. Inputs need not be
// contiguous. Results are new tensors.
//
// Every rank makes the same calls, forward and back: while gradients are recorded a result requires
// grad on every rank, even if its input does not, and every rank has to back-propagate through it.
// A rank that has no use for its part adds `out.sum() * 0` to its loss. The graph keeps the group.
// Collectives of the backward are called on the thread that calls backward(), on a CUDA device on
// torch's thread of that device: several ranks of one process need a device each.

namespace tutti::libtorch {

/// [n_r, ...] -> [sum n_r, ...]
inline at::Tensor all_gather_rows(ProcessGroup& group, const at::Tensor& local,
                                  GradScale grad_scale, const RowLayout& rows = {},
                                  const CallOptions& options = {}) {
  return detail::apply(autograd::all_gather_rows, group, local, grad_scale, rows, options);
}

namespace detail {
/// For premul_sum on a device, where the core cannot multiply: the tensor times this rank's factor,
/// to be summed.
inline at::Tensor scaled_on_device(const at::Tensor& in, ReduceOp& op) {
  if (op.kind != ReduceOp::Kind::premul_sum || in.is_cpu() || !in.is_floating_point()) return in;
  return in * std::exchange(op, ReduceOp::sum).scale;
}
}  // namespace detail

/// [sum n_r, ...] -> [n_rank, ...]; `op` is sum, avg or premul_sum.
inline at::Tensor reduce_scatter_rows(ProcessGroup& group, const at::Tensor& whole,
                                      const RowLayout& rows, ReduceOp op = ReduceOp::sum,
                                      const CallOptions& options = {}) {
  const at::Tensor x = detail::scaled_on_device(whole, op);
  return detail::apply(autograd::reduce_scatter_rows, group, x, rows, op, options);
}
/// [sum send_rows, ...] -> [sum recv_rows, ...]. `received`, if not null, gets the number of rows
/// from each rank.
inline at::Tensor all_to_all_rows(ProcessGroup& group, const at::Tensor& in, Rows send_rows = {},
                                  Rows recv_rows = {}, const CallOptions& options = {},
                                  RowLayout* received = nullptr) {
  return detail::record(group, in, [&](const ConstTensorView& x) {
    auto done =
        autograd::all_to_all_rows(group, x, send_rows, recv_rows, detail::in_torch(in, options));
    if (received != nullptr) *received = std::move(done.rows);
    return autograd::Differentiable(std::move(done));
  });
}

/// `op` is sum, avg, premul_sum, min, max or prod. prod, and on a device min and max, gather the
/// tensors of all ranks.
inline at::Tensor all_reduce(ProcessGroup& group, const at::Tensor& in, ReduceOp op = ReduceOp::sum,
                             const CallOptions& options = {}) {
  using Kind = ReduceOp::Kind;
  const bool extreme = op.kind == Kind::min || op.kind == Kind::max;
  if (op.kind == Kind::prod || (extreme && !in.is_cpu())) {  // Their derivatives are torch's.
    const at::Tensor all = AllGatherGrad::apply(in, &group, options);
    if (!extreme) return all.prod(0);
    return op.kind == Kind::min ? all.amin(0) : all.amax(0);
  }
  const at::Tensor x = detail::scaled_on_device(in, op);
  return detail::apply(autograd::all_reduce, group, x, op, options);
}
/// The result is on root; other ranks get [0], which is part of the graph as well. `op` is sum, avg
/// or premul_sum.
inline at::Tensor reduce(ProcessGroup& group, const at::Tensor& in, int root,
                         ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  const at::Tensor x = detail::scaled_on_device(in, op);
  return detail::apply(autograd::reduce, group, x, root, op, options);
}
/// `in` has the same shape everywhere.
inline at::Tensor broadcast(ProcessGroup& group, const at::Tensor& in, int root,
                            const CallOptions& options = {}) {
  return detail::apply(autograd::broadcast, group, in, root, options);
}
/// [n_r, ...] -> [sum n_r, ...] on root; other ranks get [0], which is part of the graph as well.
inline at::Tensor gather_rows(ProcessGroup& group, const at::Tensor& local, int root,
                              const RowLayout& rows = {}, const CallOptions& options = {}) {
  return detail::apply(autograd::gather_rows, group, local, root, rows, options);
}
/// `rows` and `whole` are read on root only. On other ranks `rows` may be empty and `whole`
/// undefined.
inline at::Tensor scatter_rows(ProcessGroup& group, const at::Tensor& whole, const RowLayout& rows,
                               int root, const CallOptions& options = {}) {
  const bool read = group.rank() == root && whole.defined();
  const at::Tensor part = read ? whole : detail::no_part_of(group, whole);
  return detail::apply(autograd::scatter_rows, group, part, rows, root, options);
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
  const at::Tensor none = detail::no_part_of(group, after);
  return detail::record(group, none, [&](const ConstTensorView&) {
    const Shape shape(std::span<const std::int64_t>(sizes.data(), sizes.size()));
    return autograd::recv(group, shape, from_torch(dtype), peer, tag,
                          detail::in_torch(none, options));
  });
}
/// Sends rank r's tensor, of the same shape everywhere, to rank to[r].
inline at::Tensor permute(ProcessGroup& group, const at::Tensor& in, std::span<const int> to,
                          const CallOptions& options = {}) {
  return detail::apply(autograd::permute, group, in, to, options);
}

}  // namespace tutti::libtorch
