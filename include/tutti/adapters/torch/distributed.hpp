#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/adapters/torch/detail/collective.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/error.hpp>
#include <tutti/gather.hpp>
#include <tutti/sync.hpp>

// Gathers and reductions under the names of the Python packages imbalanced-losses, PyTorch
// Lightning and torchmetrics. Collective. A null group is Error not_initialized, except where a
// function says otherwise. docs/coming-from.md compares all forms.

namespace tutti::libtorch {

namespace detail {
inline ProcessGroup& not_null(ProcessGroup* group, const char* function) {
  if (group == nullptr)
    fail(Errc::not_initialized,
         std::string(function) + ": the group is null; create it with init() first");
  return *group;
}
}  // namespace detail

/// [n_r, ...] -> [sum n_r, ...]. In a group of one rank: `x` itself. GradScale::local_slice is the
/// gradient of imbalanced-losses.
inline at::Tensor all_gather_with_grad(const at::Tensor& x, ProcessGroup* group,
                                       GradScale grad_scale = GradScale::sum,
                                       const CallOptions& options = {}) {
  ProcessGroup& ranks = detail::not_null(group, "all_gather_with_grad");
  if (ranks.size() == 1) return x;
  return detail::apply(autograd::all_gather_rows, ranks, x, grad_scale, RowLayout(), options);
}
/// all_gather_with_grad() without a gradient, of any dtype.
inline at::Tensor all_gather_no_grad(const at::Tensor& x, ProcessGroup* group,
                                     const CallOptions& options = {}) {
  ProcessGroup& ranks = detail::not_null(group, "all_gather_no_grad");
  if (ranks.size() == 1) return x;
  const Contiguous local(x);
  return to_torch(
      tutti::all_gather_rows(ranks, local, RowLayout(), detail::in_torch(x, options)).data);
}

/// [...] -> [W, ...], of the same shape on every rank. The backward sums the gradients over the
/// ranks and takes this rank's.
struct AllGatherGrad {
  /// Collective. A result requires grad on every rank while gradients are recorded.
  static at::Tensor apply(const at::Tensor& x, ProcessGroup* group,
                          const CallOptions& options = {}) {
    ProcessGroup& ranks = detail::not_null(group, "AllGatherGrad");
    return detail::apply(autograd::all_gather_rows, ranks, x.unsqueeze(0), GradScale::sum,
                         RowLayout::equal(ranks.size(), 1), options);
  }
};
/// [...] -> [W, ...], as AllGatherGrad if `sync_grads`, otherwise without a gradient and of any
/// dtype. A null group: `x` itself.
inline at::Tensor all_gather_ddp_if_available(const at::Tensor& x, ProcessGroup* group,
                                              bool sync_grads = false,
                                              const CallOptions& options = {}) {
  if (group == nullptr) return x;
  if (sync_grads) return AllGatherGrad::apply(x, group, options);
  const Contiguous local(x.unsqueeze(0));
  return to_torch(
      tutti::all_gather_rows(*group, local, RowLayout(), detail::in_torch(x, options)).data);
}

/// One tensor from each rank, in rank order; the dimensions may differ between ranks. This rank's
/// own is `x`, with its graph; the others have no gradient.
inline std::vector<at::Tensor> gather_all_tensors(const at::Tensor& x, ProcessGroup* group,
                                                  const CallOptions& options = {}) {
  ProcessGroup& ranks = detail::not_null(group, "gather_all_tensors");
  const Contiguous local(x);
  std::vector<at::Tensor> all;
  for (Tensor& each : tutti::gather_all_tensors(ranks, local, detail::in_torch(x, options)))
    all.push_back(to_torch(std::move(each)));
  all[static_cast<std::size_t>(ranks.rank())] = x;
  return all;
}

/// A reduction by enumerator, or by name in any case: "sum", "mean", "avg", "max", "min", "prod",
/// "product". Default-made: sum. A value type.
struct SyncOp {
  SyncOp(ReduceOp given = ReduceOp::sum) : op(given) {}
  SyncOp(const char* name) : SyncOp(std::string(name)) {}
  /// @throws Error invalid_argument for another name, on this rank alone.
  SyncOp(const std::string& name) {
    std::string lower = name;
    for (char& c : lower)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    for (const char* known : {"sum", "mean", "avg", "max", "min", "prod", "product"})
      if (lower == known) {
        op.kind = *parse_reduce_op(lower);
        return;
      }
    fail(Errc::invalid_argument, "reduce op '" + name +
                                     "' is unknown; known are sum, mean, avg, max, min, prod, "
                                     "product");
  }
  ReduceOp op;  ///< sum, avg, max, min or prod if made from a name.
};

/// Reduces over the ranks in place and returns `x`, which is contiguous. A mean of integers is the
/// sum divided by W, truncated toward zero. Has no gradient: refused for a tensor that requires
/// grad while gradients are recorded.
inline at::Tensor sync_ddp(const at::Tensor& x, ProcessGroup* group, const SyncOp& op = {},
                           const CallOptions& options = {}) {
  ProcessGroup& ranks = detail::not_null(group, "sync_ddp");
  CallOptions own = detail::in_torch(x, options);
  own.integer_avg = true;
  ranks.all_reduce(mutable_view(x), op.op, own);
  return x;
}
/// Of a number returns a number, as all_reduce_number() does.
template <typename T>
requires std::is_arithmetic_v<T>
auto sync_ddp(T value, ProcessGroup* group, const SyncOp& op = {},
              const CallOptions& options = {}) {
  return all_reduce_number(detail::not_null(group, "sync_ddp"), value, op.op, options);
}
/// sync_ddp() that allows a null group: then the value is unchanged.
template <typename T>
auto sync_ddp_if_available(const T& value, ProcessGroup* group, const SyncOp& op = {},
                           const CallOptions& options = {}) {
  return group == nullptr ? value : sync_ddp(value, group, op, options);
}

}  // namespace tutti::libtorch
