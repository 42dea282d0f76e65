#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/gather.hpp>

// Differentiable collectives. A forward returns its value and a Backward, which takes the gradient
// of the value to the gradient of the input: another collective of this header, scaled.
//
// Each rank back-propagates a scalar of its own, L_s; gradients are those of J = sum over s of L_s,
// exactly: a collective is a linear map of the stacked inputs of all ranks, and its backward the
// transpose (docs/gradients.md derives them, and says which of them a reducer wants).
//
// Both directions are collective, with the same order of calls on every rank. dtypes: f32, f64,
// f16, bf16; others are Error invalid_argument at the forward, before anything is sent, as are
// operations without a gradient. What is computed element by element (min, max, product,
// premul_sum, and avg where the backward is no reduction) needs host memory: elsewhere it is Error
// unsupported at the forward. A group of one rank goes the same way. Results are in the group's
// memory, or in GatherOptions::memory of the forward, in both directions.

namespace tutti {

namespace internal {
struct Transpose;
}

namespace [[gnu::visibility("default")]] autograd {

struct Differentiable;

/// The transpose of a forward: the collective that it is, and the little that it needs. A value
/// type that holds no group; copies share the saved arrays. Calls may be repeated.
class Backward {
 public:
  explicit Backward(std::shared_ptr<const internal::Transpose> transpose) noexcept
      : transpose_(std::move(transpose)) {}
  /// Collective. `gradient` has the shape and dtype of the forward's value; it is not read on ranks
  /// other than root where the value is on root only, and not for send.
  /// @return the gradient of the forward's input, and the transpose of this call: derivatives by
  /// `gradient` can be taken any number of times. Saved arrays count as constants.
  Differentiable operator()(ProcessGroup& group, const ConstTensorView& gradient,
                            const CallOptions& options = {}) const;
  /// The forward that it is: "reduce_scatter_rows". Empty where it makes no call.
  std::string_view collective() const noexcept;

 private:
  std::shared_ptr<const internal::Transpose> transpose_;
};

/// The result of a forward or a backward.
struct Differentiable {
  Tensor value;
  Backward back;
};
struct DifferentiableRows : Differentiable {
  RowLayout layout;  ///< On every rank.
};

/// Which gradient of a gather a rank gets. There is no default: libraries differ by a factor of
/// the world size. G_s is the gradient of L_s by the gathered array.
enum class GatherGrad : std::uint8_t {
  sum,  ///< Own rows of the sum over s of G_s: the exact adjoint, one ragged reduce_scatter.
  local_slice,  ///< Own rows of the own G: free. Right only when every rank has the same loss, and
                ///< then it is 1/W of sum.
  mean,         ///< sum / W.
};

/// Value [sum n_r, ...]. Backward: by `grad`.
DifferentiableRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                                   GatherGrad grad, const GatherOptions& options = {});
/// sum, avg, premul_sum. Value [n_rank, ...]. Backward: gathers rows and scales them.
Differentiable reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                                   const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                                   const GatherOptions& options = {});
/// Block j of in [sum send_rows, ...] goes to rank j; value [sum recv_rows, ...]. Rows that are not
/// given are an equal part of `in` for each rank. Backward: the same with the counts swapped.
Differentiable all_to_all_rows(ProcessGroup& group, const ConstTensorView& in, Rows send_rows = {},
                               Rows recv_rows = {}, const GatherOptions& options = {});

/// sum, avg, premul_sum; min and max, whose gradient ranks that tie share equally; product, also
/// where factors are zero. NaN: all ranks that hold one tie. On the wire: one all_reduce each way;
/// for min and max one of i32 more, for product an all_gather instead of the forward's.
Differentiable all_reduce(ProcessGroup& group, const ConstTensorView& in,
                          ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
/// Of each element, the product over all other ranks (1 in a group of one): the derivative of
/// all_reduce(product). On the wire: an all_gather each way.
Differentiable product_of_others(ProcessGroup& group, const ConstTensorView& in,
                                 const CallOptions& options = {});

/// sum, avg, premul_sum. Value [...] on root, [0] elsewhere. Backward: a broadcast, scaled.
Differentiable reduce(ProcessGroup& group, const ConstTensorView& in, int root,
                      ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
/// `in` has the same shape everywhere and is read on root only; elsewhere its gradient is zero.
/// Backward: a reduce(sum).
Differentiable broadcast(ProcessGroup& group, const ConstTensorView& in, int root,
                         const CallOptions& options = {});
/// Value [sum n_r, ...] on root, [0] elsewhere. Backward: a scatter, of bytes only.
DifferentiableRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                               const GatherOptions& options = {});
/// As tutti::scatter_rows; the gradient of `whole` is [0] on ranks other than root. Backward:
/// tutti::gather_rows, with its exchange of layouts.
Differentiable scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                            const RowLayout* layout, int root, const GatherOptions& options = {});

/// Value [0]. Backward: receives the gradient, with the same tag. Call backwards in the reverse
/// order of the forwards, or ranks wait for each other. A message in a group of one rank too.
Differentiable send(ProcessGroup& group, const ConstTensorView& in, int peer, int tag = 0,
                    const CallOptions& options = {});
/// Backward: sends the gradient, and returns [0].
Differentiable recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag = 0,
                    const CallOptions& options = {});
/// Rank r's array [...], of the same shape everywhere, goes to rank to[r]; `to` is a permutation,
/// the same on every rank. Backward: the inverse. Messages with a tag of their own.
Differentiable permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                       const CallOptions& options = {});

}  // namespace autograd
}  // namespace tutti
