#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/adapters/torch/detail/collective.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/error.hpp>
#include <tutti/gather.hpp>
#include <tutti/sync.hpp>

// Gathers under the names of the Python packages imbalanced-losses, PyTorch Lightning and
// torchmetrics. Collective. A null group is Error not_initialized, except where a function says
// otherwise. docs/coming-from.md compares all forms.

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
  const Contiguous local(x);
  return to_torch(
      tutti::all_gather_ddp_if_available(local, group, RowLayout(), detail::in_torch(x, options)));
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

}  // namespace tutti::libtorch
