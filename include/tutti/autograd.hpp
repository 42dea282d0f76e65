#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/autograd_messages.hpp>
#include <tutti/autograd_reduce.hpp>
#include <tutti/autograd_root.hpp>
#include <tutti/gather.hpp>
#include <tutti/maybe_owned.hpp>
#include <tutti/process_group.hpp>

// Differentiable collectives. Every operation is a pair: the forward returns its value and a small
// context, f_vjp(group, context, grad_out) the gradient of the input ("vector-Jacobian product").
//
// Each rank back-propagates a scalar of its own, L_s; gradients are those of J = sum over s of L_s,
// exactly: a collective is a linear map of the stacked inputs of all ranks, and its vjp the
// transpose (docs/gradients.md derives them, and says which of them a reducer wants).
//
// Both halves are collective, with the same order of calls on every rank. dtypes: f32, f64, f16,
// bf16; others are Error invalid_argument at the forward, before anything is sent, as are
// operations without a gradient. What is computed element by element (min, max, product,
// premul_sum, and avg where the vjp is no reduction) needs host memory: elsewhere it is Error
// unsupported at the forward. A group of one rank makes no call and returns the input itself
// (scaled, for premul_sum). grad_out has the shape and dtype of the forward's value.
//
// Each vjp is a forward of this header, scaled by numbers that do not depend on grad_out, so that
// differentiating it again is calling that forward's vjp. Results are in the group's memory, or in
// GatherOptions::memory.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

/// Which gradient of a gather a rank gets. There is no default: libraries differ by a factor of
/// the world size. G_s is the gradient of L_s by the gathered array.
enum class GatherGrad : std::uint8_t {
  sum,  ///< Own rows of the sum over s of G_s: the exact adjoint, one ragged reduce_scatter.
  local_slice,  ///< Own rows of the own G: free. Right only when every rank has the same loss, and
                ///< then it is 1/W of sum.
  mean,         ///< sum / W.
};

struct AllGatherContext {
  RowLayout layout{};
  GatherGrad grad = GatherGrad::sum;
  Shape shape{};  ///< Of the local array.
  DType dtype = DType::f32;
};
struct AllGathered {
  MaybeOwned out;  ///< [sum n_r, ...]
  AllGatherContext context;
};
AllGathered all_gather_rows(ProcessGroup& group, const ConstTensorView& local, GatherGrad grad,
                            const GatherOptions& options = {});
MaybeOwned all_gather_rows_vjp(ProcessGroup& group, const AllGatherContext& context,
                               const ConstTensorView& grad_out, const GatherOptions& options = {});

/// For code that may run without a group: null is Error not_initialized.
AllGathered all_gather_with_grad(ProcessGroup* group, const ConstTensorView& local, GatherGrad grad,
                                 const GatherOptions& options = {});
/// Every dtype.
MaybeOwned all_gather_no_grad(ProcessGroup* group, const ConstTensorView& local,
                              const GatherOptions& options = {});

/// sum, avg, premul_sum. The vjp gathers rows and scales them.
struct ReduceScatterContext {
  RowLayout layout{};
  ReduceOp op{};
  Shape shape{};  ///< Of the whole array.
  DType dtype = DType::f32;
};
struct ReduceScattered {
  MaybeOwned out;  ///< [n_rank, ...]
  ReduceScatterContext context;
};
ReduceScattered reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                                    const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                                    const GatherOptions& options = {});
MaybeOwned reduce_scatter_rows_vjp(ProcessGroup& group, const ReduceScatterContext& context,
                                   const ConstTensorView& grad_out,
                                   const GatherOptions& options = {});

/// Block j of in [sum send_rows, ...] goes to rank j; out [sum recv_rows, ...].
struct AllToAllContext {
  std::vector<std::int64_t> send_rows, recv_rows;
  Shape shape{};
  DType dtype = DType::f32;
};
struct Exchanged {
  MaybeOwned out;
  AllToAllContext context;
};
Exchanged all_to_all_rows(ProcessGroup& group, const ConstTensorView& in,
                          std::span<const std::int64_t> send_rows,
                          std::span<const std::int64_t> recv_rows,
                          const GatherOptions& options = {});
MaybeOwned all_to_all_rows_vjp(ProcessGroup& group, const AllToAllContext& context,
                               const ConstTensorView& grad_out, const GatherOptions& options = {});

}  // namespace autograd
}  // namespace tutti
