#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/gather.hpp>
#include <tutti/grad_scale.hpp>

// Differentiable collectives. A forward returns its value and a Backward. The Backward maps the
// gradient of the value to the gradient of the input: it calls another collective and scales.
//
// Each rank s back-propagates its own scalar L_s. Gradients are exactly those of J = sum over s of
// L_s: the derivative of a collective is a linear map of the stacked inputs of all ranks, and the
// backward is its transpose. docs/gradients.md derives the backwards and says which gradient a
// reducer needs.
//
// Forward and backward are collective; every rank makes the same calls in the same order. Before
// anything is sent, the forward refuses dtypes other than f32, f64, f16 and bf16, and operations
// without a gradient (Error invalid_argument). The gradients of min, max, prod, premul_sum, and
// of avg where the backward is not a reduction, are computed element by element and need host
// memory; on a device the forwards of these operations throw Error unsupported. A group of one rank
// makes the same calls. Results are in options.memory, or else in that of the forward's options,
// or else in the group's memory.

namespace tutti {

namespace internal {
struct Transpose;
}

namespace [[gnu::visibility("default")]] autograd {

struct Differentiable;

/// The transpose of a forward. A value type that holds no group; copies share the saved arrays.
/// Calls may be repeated. Concurrent calls follow the group's thread rules.
class Backward {
 public:
  explicit Backward(std::shared_ptr<const internal::Transpose> transpose) noexcept
      : transpose_(std::move(transpose)) {}
  /// Collective. `gradient` has the shape and dtype of the forward's value. `gradient` is not read
  /// for send, nor on ranks other than root if the value is on root only.
  /// @return the gradient of the forward's input, and a Backward of this call, to differentiate
  ///         again by `gradient`, to any order. Saved arrays count as constants.
  Differentiable operator()(ProcessGroup& group, const ConstTensorView& gradient,
                            const CallOptions& options = {}) const;
  /// The collective that the Backward calls, for example "reduce_scatter_rows"; empty for none.
  std::string_view collective() const noexcept;

 private:
  std::shared_ptr<const internal::Transpose> transpose_;
};

/// The result of a forward or a backward.
struct Differentiable {
  Tensor value;   ///< Of the forward; of a backward, the gradient of the forward's input.
  Backward back;  ///< The transpose of the call that returned this.
};
/// The result of a forward whose value has rows of several ranks.
struct DifferentiableRows : Differentiable {
  RowLayout rows;  ///< The row counts of the value, or of root's.
};

/// Value [sum n_r, ...], the rows of all ranks. Backward: a reduce_scatter of rows for sum
/// and mean; for local_slice it sends nothing.
DifferentiableRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                                   GradScale grad_scale, const RowLayout& rows = {},
                                   const CallOptions& options = {});
/// `op` is sum, avg or premul_sum. Value [n_rank, ...]. Backward: an all_gather of rows, scaled.
Differentiable reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                                   const RowLayout& rows, ReduceOp op = ReduceOp::sum,
                                   const CallOptions& options = {});
/// Sends block j of `in` [sum send_rows, ...] to rank j. Value [sum recv_rows, ...]; its rows have
/// the number of rows from each rank. Without row counts each block has 1 / W of the rows of `in`.
/// With send_rows alone the ranks exchange them first, as all_to_all_rows() of gather.hpp.
/// Backward: one all_to_all with the counts swapped.
DifferentiableRows all_to_all_rows(ProcessGroup& group, const ConstTensorView& in,
                                   Rows send_rows = {}, Rows recv_rows = {},
                                   const CallOptions& options = {});

/// `op` is sum, avg, premul_sum, min, max or prod. For min and max, ranks that tie share the
/// gradient equally; all ranks with a NaN tie. The gradient of prod is correct where factors are
/// zero. On the wire: one all_reduce each way. The forward of min and max makes a second
/// all_reduce, of i32; the forward of prod makes an all_gather instead.
Differentiable all_reduce(ProcessGroup& group, const ConstTensorView& in,
                          ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

/// `op` is sum, avg or premul_sum. Value [...] on root, [0] elsewhere. Backward: a broadcast,
/// scaled.
Differentiable reduce(ProcessGroup& group, const ConstTensorView& in, int root,
                      ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
/// `in` has the same shape on every rank and is read on root only. The gradient of `in` is zero on
/// other ranks. Backward: a reduce(sum).
Differentiable broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                         const CallOptions& options = {});
/// Value [sum n_r, ...] on root, [0] elsewhere. Backward: a scatter.
DifferentiableRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                               const RowLayout& rows = {}, const CallOptions& options = {});
/// The forward is tutti::scatter_rows. The gradient of `whole` is [0] on ranks other than root.
/// Backward: tutti::gather_rows, with its exchange of row counts.
Differentiable scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                            const RowLayout& rows, int root, const CallOptions& options = {});

/// Value [0]. Backward: receives the gradient, with the same tag. Call backwards in the reverse
/// order of the forwards; otherwise ranks wait for each other. A group of one rank sends to itself.
Differentiable send(ProcessGroup& group, const ConstTensorView& in, int peer, int tag = 0,
                    const CallOptions& options = {});
/// Backward: sends the gradient, and returns [0].
Differentiable recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag = 0,
                    const CallOptions& options = {});
/// Sends rank r's array [...] to rank to[r]. The shape and `to`, a permutation, are the same on
/// every rank. Backward: the inverse permutation. Its messages use a reserved tag.
Differentiable permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                       const CallOptions& options = {});

}  // namespace autograd
}  // namespace tutti
