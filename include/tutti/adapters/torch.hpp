#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include <tutti/adapters/torch_tensor.hpp>
#include <tutti/autograd.hpp>

// The collectives of <tutti/autograd.hpp> as functions of LibTorch's autograd, in host memory.
// docs/adapters.md.
//
// The derivative of each is made of these functions again, so that any derivative can be taken.
// Inputs need not be contiguous. Results are new tensors; a group of one rank returns its input.
//
// Every rank makes the same calls, forward and back: while gradients are recorded a result requires
// grad on every rank, whatever its input says, and every rank has to back-propagate through it. One
// that has no use for its part adds `out.sum() * 0` to its loss. The group outlives the graph; the
// backward calls are made on the thread that calls backward().

namespace tutti::libtorch {

using autograd::GatherGrad;

/// [n_r, ...] -> [sum n_r, ...]
at::Tensor all_gather_rows(ProcessGroup& group, const at::Tensor& local, GatherGrad grad,
                           const GatherOptions& options = {});
/// [sum n_r, ...] -> [n_rank, ...]; sum, avg, premul_sum.
at::Tensor reduce_scatter_rows(ProcessGroup& group, const at::Tensor& whole,
                               const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                               const GatherOptions& options = {});

/// sum, avg, premul_sum, min, max, product.
at::Tensor all_reduce(ProcessGroup& group, const at::Tensor& in, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});
/// Of each element, the product over all other ranks.
at::Tensor product_of_others(ProcessGroup& group, const at::Tensor& in,
                             const CallOptions& options = {});

/// Results that are on root only are [0] elsewhere, and part of the graph there too.
at::Tensor reduce(ProcessGroup& group, const at::Tensor& in, int root, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {});
/// `in` has the same shape everywhere.
at::Tensor broadcast(ProcessGroup& group, const at::Tensor& in, int root,
                     const CallOptions& options = {});
at::Tensor gather_rows(ProcessGroup& group, const at::Tensor& local, int root,
                       const GatherOptions& options = {});
/// `layout` is root's, elsewhere null; `whole` may be not defined there.
at::Tensor scatter_rows(ProcessGroup& group, const at::Tensor& whole, const RowLayout* layout,
                        int root, const GatherOptions& options = {});

/// [sum send_rows, ...] -> [sum recv_rows, ...]
at::Tensor all_to_all_rows(ProcessGroup& group, const at::Tensor& in,
                           std::span<const std::int64_t> send_rows,
                           std::span<const std::int64_t> recv_rows,
                           const GatherOptions& options = {});
/// Rank r's tensor, of the same shape everywhere, goes to rank to[r].
at::Tensor permute(ProcessGroup& group, const at::Tensor& in, std::span<const int> to,
                   const CallOptions& options = {});

/// Returns a token [0]: the backward of what uses it, `loss + token.sum()`, receives the gradient.
at::Tensor send(ProcessGroup& group, const at::Tensor& in, int peer, int tag = 0,
                const CallOptions& options = {});
/// `after` is anything on whose graph this depends, such as the token of an earlier send: its
/// backward comes after this one's. Second derivatives need it.
at::Tensor recv(ProcessGroup& group, at::IntArrayRef sizes, at::ScalarType dtype, int peer,
                int tag = 0, const at::Tensor& after = {}, const CallOptions& options = {});

}  // namespace tutti::libtorch

// The definitions.
#include <tutti/adapters/torch_autograd.hpp>
#include <tutti/adapters/torch_autograd_pairs.hpp>
