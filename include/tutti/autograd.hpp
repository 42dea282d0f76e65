#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/gather.hpp>
#include <tutti/process_group.hpp>
#include <tutti/value.hpp>

// Differentiable collectives. Every operation is a pair: the forward returns its value and a small
// context, f_vjp(group, context, grad_out) the gradient of the input ("vector-Jacobian product").
//
// Each rank back-propagates a scalar of its own, L_s; gradients are those of J = sum over s of L_s,
// exactly: a collective is a linear map of the stacked inputs of all ranks, and its vjp the
// transpose (docs/gradients.md derives them, and says which of them a reducer wants).
//
// Both halves are collective, with the same order of calls on every rank. dtypes: f32, f64, f16,
// bf16; integers, booleans and bitwise operations are Error invalid_argument at the forward. A
// group of one rank returns the input itself without a call. Each vjp is made of the forwards of
// this header, so that differentiating it again is calling their vjps.

namespace [[gnu::visibility("default")]] tutti::autograd {

/// Which gradient of a gather a rank gets. There is no default: libraries differ by a factor of
/// the world size. G_s is the gradient of L_s by the gathered array.
enum class GatherGrad : std::uint8_t {
  sum,  ///< Own rows of the sum over s of G_s: the exact adjoint, one ragged reduce_scatter.
  local_slice,  ///< Own rows of the own G: free. Right only when every rank has the same loss, and
                ///< then it is 1/W of sum.
  mean,         ///< sum / W.
};

struct AllGatherContext {
  RowLayout layout;
  GatherGrad grad = GatherGrad::sum;
  Shape shape{};  ///< Of the local array.
  DType dtype = DType::f32;
};
struct AllGathered {
  Value out;  ///< [sum n_r, ...]
  AllGatherContext context;
};
AllGathered all_gather_rows(ProcessGroup& group, const ConstTensorView& local, GatherGrad grad,
                            const GatherOptions& options = {});
Value all_gather_rows_vjp(ProcessGroup& group, const AllGatherContext& context,
                          const ConstTensorView& grad_out, const GatherOptions& options = {});

/// For code that may run without a group: null is Error not_initialized.
AllGathered all_gather_with_grad(ProcessGroup* group, const ConstTensorView& local, GatherGrad grad,
                                 const GatherOptions& options = {});
Value all_gather_no_grad(ProcessGroup* group, const ConstTensorView& local,
                         const GatherOptions& options = {});

/// sum, avg, premul_sum.
struct ReduceScatterContext {
  RowLayout layout;
  ReduceOp op{};
};
struct ReduceScattered {
  Value out;  ///< [n_rank, ...]
  ReduceScatterContext context;
};
ReduceScattered reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                                    const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                                    const GatherOptions& options = {});
Value reduce_scatter_rows_vjp(ProcessGroup& group, const ReduceScatterContext& context,
                              const ConstTensorView& grad_out, const GatherOptions& options = {});

/// sum, avg, premul_sum; min and max, whose gradient ranks that tie share equally; product, also
/// where factors are zero. NaN: all ranks that hold one tie.
struct AllReduceContext {
  ReduceOp op{};
  Tensor weights{};  ///< min, max, product: d out / d in, [...]; otherwise empty.
};
struct AllReduced {
  Value out;
  AllReduceContext context;
};
AllReduced all_reduce(ProcessGroup& group, const ConstTensorView& in, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});
Value all_reduce_vjp(ProcessGroup& group, const AllReduceContext& context,
                     const ConstTensorView& grad_out, const CallOptions& options = {});

/// Of each element, the product over all other ranks (1 in a group of one): the derivative of
/// all_reduce(product), differentiable in turn. On the wire: what an all_gather of in sends.
struct ProductContext {
  Tensor all{};  ///< [W, ...] what every rank had.
};
struct ProductOfOthers {
  Value out;
  ProductContext context;
};
ProductOfOthers product_of_others(ProcessGroup& group, const ConstTensorView& in,
                                  const CallOptions& options = {});
Value product_of_others_vjp(ProcessGroup& group, const ProductContext& context,
                            const ConstTensorView& grad_out, const CallOptions& options = {});

/// sum, avg, premul_sum. `out` is empty ([0]) except on root; grad_out is used on root only.
struct RootContext {
  ReduceOp op{};
  int root = 0;
  Shape shape{};
  DType dtype = DType::f32;
  RowLayout layout{};  ///< gather, scatter.
};
struct Rooted {
  Value out;
  RootContext context;
};
Rooted reduce(ProcessGroup& group, const ConstTensorView& in, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {});
Value reduce_vjp(ProcessGroup& group, const RootContext& context, const ConstTensorView& grad_out,
                 const CallOptions& options = {});
/// `in` has the same shape everywhere and is read on root only; elsewhere its gradient is zero.
Rooted broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                 const CallOptions& options = {});
Value broadcast_vjp(ProcessGroup& group, const RootContext& context,
                    const ConstTensorView& grad_out, const CallOptions& options = {});
/// Rows to root, and from it; the other functions of gather.hpp with their options.
Rooted gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                   const GatherOptions& options = {});
Value gather_rows_vjp(ProcessGroup& group, const RootContext& context,
                      const ConstTensorView& grad_out, const GatherOptions& options = {});
Rooted scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout* layout,
                    int root, const GatherOptions& options = {});
Value scatter_rows_vjp(ProcessGroup& group, const RootContext& context,
                       const ConstTensorView& grad_out, const GatherOptions& options = {});

/// Block j of in [sum send_rows, ...] goes to rank j; out [sum recv_rows, ...].
struct AllToAllContext {
  std::vector<std::int64_t> send_rows, recv_rows;
};
struct Exchanged {
  Value out;
  AllToAllContext context;
};
Exchanged all_to_all_rows(ProcessGroup& group, const ConstTensorView& in,
                          std::span<const std::int64_t> send_rows,
                          std::span<const std::int64_t> recv_rows,
                          const GatherOptions& options = {});
Value all_to_all_rows_vjp(ProcessGroup& group, const AllToAllContext& context,
                          const ConstTensorView& grad_out, const GatherOptions& options = {});

/// Point to point: the vjp of a send receives its gradient, that of a receive sends it. Call vjps
/// in the reverse order of the forwards, or ranks wait for each other.
struct PairContext {
  int peer = 0;
  int tag = 0;
  Shape shape{};
  DType dtype = DType::f32;
};
PairContext send(ProcessGroup& group, const ConstTensorView& in, int peer, int tag = 0,
                 const CallOptions& options = {});
Value send_vjp(ProcessGroup& group, const PairContext& context, const CallOptions& options = {});
struct Received {
  Value out;
  PairContext context;
};
Received recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag = 0,
              const CallOptions& options = {});
void recv_vjp(ProcessGroup& group, const PairContext& context, const ConstTensorView& grad_out,
              const CallOptions& options = {});

/// Rank r's array [...], of the same shape everywhere, goes to rank to[r]; `to` is a permutation.
struct PermuteContext {
  std::vector<int> to;
};
struct Permuted {
  Value out;
  PermuteContext context;
};
Permuted permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                 const CallOptions& options = {});
Value permute_vjp(ProcessGroup& group, const PermuteContext& context,
                  const ConstTensorView& grad_out, const CallOptions& options = {});

}  // namespace tutti::autograd
