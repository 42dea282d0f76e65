#pragma once

#include <tutti/gather.hpp>
#include <tutti/maybe_owned.hpp>
#include <tutti/process_group.hpp>

// The differentiable collectives of which one rank is the root; autograd.hpp says what holds for
// all. What only the root has is empty ([0]) elsewhere; where only the root's array counts, the
// others may pass {}.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

struct RootContext {
  ReduceOp op{};
  int root = 0;
  Shape shape{};  ///< Of this rank's input.
  DType dtype = DType::f32;
  RowLayout layout{};  ///< gather_rows: on every rank; scatter_rows: on root.
  Shape out_shape{};   ///< Of this rank's value.
};
struct Rooted {
  MaybeOwned out;
  RootContext context;
};

/// sum, avg, premul_sum. The vjp is a broadcast of root's grad_out, scaled.
Rooted reduce(ProcessGroup& group, const ConstTensorView& in, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {});
MaybeOwned reduce_vjp(ProcessGroup& group, const RootContext& context,
                      const ConstTensorView& grad_out, const CallOptions& options = {});

/// `in` has the same shape everywhere and is read on root only; elsewhere its gradient is zero. The
/// vjp is a reduce(sum) of every rank's grad_out.
Rooted broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                 const CallOptions& options = {});
MaybeOwned broadcast_vjp(ProcessGroup& group, const RootContext& context,
                         const ConstTensorView& grad_out, const CallOptions& options = {});

/// The ranks' rows to root, as tutti::gather_rows. The vjp is a scatter: of bytes only, the layout
/// is known.
Rooted gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                   const GatherOptions& options = {});
MaybeOwned gather_rows_vjp(ProcessGroup& group, const RootContext& context,
                           const ConstTensorView& grad_out, const GatherOptions& options = {});

/// Root's rows to the ranks, as tutti::scatter_rows. The vjp is tutti::gather_rows, with its
/// exchange of layouts; options.layout is not used.
Rooted scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout* layout,
                    int root, const GatherOptions& options = {});
MaybeOwned scatter_rows_vjp(ProcessGroup& group, const RootContext& context,
                            const ConstTensorView& grad_out, const GatherOptions& options = {});

}  // namespace autograd
}  // namespace tutti
