#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/adapters/torch/detail/ddp_gradients.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/join.hpp>

// Data-parallel training of LibTorch's modules. docs/data-parallel.md.

namespace tutti::libtorch {

/// Options of DistributedDataParallel. Equal on all ranks.
struct DdpOptions {
  ddp::ReducerOptions reducer{};  ///< Options of the GradientReducer.
  bool broadcast_buffers = true;  ///< forward() first copies rank 0's buffers to all ranks.
};

/// Trains a module on all ranks of a group, in the manner of torch's Python class of this name:
///
///     DistributedDataParallel model(group, *net);   // ranks start with rank 0's parameters
///     for each batch:
///       loss_of(model(batch)).backward();            // gradients are now means over the ranks
///       optimizer step
///
/// Buckets are reduced while backward() still runs. It ends when the last one is reduced, and
/// throws the errors of GradientReducer::finish(). A parameter that it does not reach contributes
/// the gradient that it has; without one it is missing, or unused with find_unused_parameters.
/// Parameters that do not require grad are broadcast once. torch::autograd::grad() reduces nothing.
///
/// With gradient_as_bucket_view gradients lie in the buckets while this object lives. To save a
/// copy per step, zero them in place: zero_grad(false).
///
/// Parameters and buffers are contiguous and on the group's device. module.to() comes before; on a
/// CUDA device, construct this object on the stream on which you train. On a
/// CUDA device gradients are reduced on a stream of torch's pool, and the current stream of the
/// caller of backward() waits for the results; hooks compute by torch's operators. A gradient that
/// is not contiguous aborts the group. One backward at a time. The module must outlive this object.
/// A resource type: neither copied nor moved.
template <typename Module>
class DistributedDataParallel {
 public:
  /// Collective, as the constructor of GradientReducer.
  DistributedDataParallel(ProcessGroup& group, Module& module, const DdpOptions& options = {})
      : module_(module), broadcasts_buffers_(options.broadcast_buffers), options_(options.reducer) {
    const c10::NoGradGuard off;
    std::vector<at::Tensor> leaves;
    std::vector<ddp::Parameter> trained, buffers;
    std::unordered_set<const void*> seen;  // A tied parameter has several names.
    c10::Device device = c10::kCPU;
    const auto add = [&](std::vector<ddp::Parameter>& to, const std::string& name,
                         const at::Tensor& x) {
      to.push_back({name, mutable_view(x)});
      device = x.device();
    };
    for (const auto& [name, x] : module.named_parameters().pairs()) {
      if (!seen.insert(x.unsafeGetTensorImpl()).second) continue;
      add(x.requires_grad() ? trained : frozen_, name, x);
      if (x.requires_grad()) leaves.push_back(x);
    }
    for (const auto& [name, x] : module.named_buffers().pairs()) {
      if (!x.defined()) continue;
      add(buffers, name, x);
      buffers_.emplace_back(x, x.data_ptr());
    }
    detail::synchronize(device);  // The reducer copies rank 0's values on another stream.
    send_frozen(group);
    gradients_.emplace(group, std::move(leaves), std::move(trained), options.reducer,
                       std::move(buffers));
  }

  /// Calls module.forward(args...). Before it, while gradients are recorded and outside no_sync(),
  /// broadcasts the buffers: then collective.
  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    if (c10::GradMode::is_enabled() && gradients_->is_synced()) send_buffers();
    return module_.forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// While the result lives, gradients accumulate and nothing is sent. The next backward() after it
  /// reduces the sums. The result must not outlive this object.
  [[nodiscard]] std::shared_ptr<void> no_sync() { return gradients_->no_sync(); }
  /// For ReducerOptions::average_over_rows: call it before each backward(), within no_sync() too,
  /// with the number of rows of its loss, which is a sum over rows.
  void add_rows(double rows) noexcept { gradients_->add_rows(rows); }
  /// GradientReducer::set_hook(). Call it with the same arguments on all ranks, between steps.
  void set_hook(ddp::CommHook hook, const ddp::HookWrapper& wrapper = {}) {
    reducer().set_hook(std::move(hook), wrapper);
  }
  /// Collective: goes on over another group, as GradientReducer::set_group(). Sets the gradients to
  /// undefined: they are those of a step that is dropped.
  void set_group(ProcessGroup& group) {
    send_frozen(group);
    gradients_->set_group(group);
  }
  /// The reducer, for functions that this class does not have.
  ddp::GradientReducer& reducer() noexcept { return gradients_->reducer(); }

  /// For ranks with different numbers of batches:
  ///
  ///     auto join = model.join();
  ///     while (model.next(join, batch != end)) {
  ///       if (batch != end) loss_of(model(*batch++)).backward();
  ///       optimizer step on all ranks
  ///     }
  ddp::Join join(ddp::JoinOptions options = {}) {
    options.make_empty_steps = false;  // next() makes them.
    return ddp::Join(reducer(), options);
  }
  /// Collective: Join::next(), and step_empty() on a rank without a batch.
  bool next(ddp::Join& join, bool has_batch) {
    const bool more = join.next(has_batch);
    if (more && !has_batch) step_empty();
    return more;
  }
  /// Makes the calls of a forward and a backward on a rank without a batch, whose gradients are
  /// then the reduced ones.
  void step_empty() {
    send_buffers();
    gradients_->step_empty();
  }

 private:
  void send_frozen(ProcessGroup& group) { ddp::GradientReducer(group, {}, options_, frozen_); }
  void send_buffers() {
    if (!broadcasts_buffers_) return;
    const c10::NoGradGuard off;
    for (const auto& [buffer, data] : buffers_)
      if (mutable_view(buffer).data != data)
        fail(
            Errc::invalid_argument,
            "DistributedDataParallel: the memory of a buffer has changed; call to() and set_data() "
            "before the constructor");
    if (!buffers_.empty())
      reducer().broadcast_buffers(
          detail::on_current_stream(buffers_.front().first.device()).stream);
  }

  Module& module_;
  const bool broadcasts_buffers_;
  const ddp::ReducerOptions options_;
  std::vector<ddp::Parameter> frozen_;  // Parameters that do not require grad.
  std::vector<std::pair<at::Tensor, const void*>> buffers_;
  std::optional<detail::Gradients> gradients_;
};

/// model.set_hook(hook, wrapper), under PyTorch Lightning's name. The hook holds its state itself.
template <typename Module>
void register_ddp_comm_hook(DistributedDataParallel<Module>& model, ddp::CommHook hook,
                            const ddp::HookWrapper& wrapper = {}) {
  model.set_hook(std::move(hook), wrapper);
}

}  // namespace tutti::libtorch
