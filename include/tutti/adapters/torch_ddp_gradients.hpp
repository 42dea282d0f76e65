#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <tutti/adapters/torch_tensor.hpp>
#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::libtorch::detail {

/// Reduces the gradients of leaf tensors while a backward runs. Not copied: hooks refer to it.
class Gradients {
 public:
  Gradients(ProcessGroup& group, std::vector<at::Tensor> leaves,
            std::vector<ddp::Parameter> parameters, const ddp::ReducerOptions& options,
            std::vector<ddp::Parameter> buffers)
      : group_(group),
        leaves_(std::move(leaves)),
        options_(options),
        reducer_(group, std::move(parameters), options, std::move(buffers)) {
    hooks_.reserve(leaves_.size());
    for (std::size_t id = 0; id < leaves_.size(); ++id) {
      const auto call = [this, id](const auto& outputs, const auto&) {
        on_gradient(id);
        return outputs;
      };
      const Node node = ::torch::autograd::impl::grad_accumulator(leaves_[id]);
      hooks_.emplace_back(node, node->add_post_hook(std::make_unique<Hook>(call)));
    }
  }
  Gradients(const Gradients&) = delete;
  ~Gradients() {
    const c10::NoGradGuard off;
    for (const auto& [node, key] : hooks_) node->del_post_hook(key);
    for (std::size_t id = 0; id < leaves_.size(); ++id) {
      if (!is_in_bucket(id)) continue;
      at::Tensor& gradient = leaves_[id].mutable_grad();
      try {
        gradient = gradient.clone();  // The bucket ends with the reducer.
      } catch (...) {                 // There is no memory.
        gradient.reset();
      }
    }
  }

  ddp::GradientReducer& reducer() noexcept { return reducer_; }
  std::shared_ptr<void> no_sync() {
    const auto scope = is_synced() ? std::make_shared<NoSync>(reducer_.no_sync()) : scope_.lock();
    scope_ = scope;
    return scope;
  }
  bool is_synced() const noexcept { return scope_.expired(); }

  void step_empty() {
    marked_.assign(leaves_.size(), false);
    reducer_.step_empty();
    take_results();
  }

 private:
  using Engine = ::torch::autograd::Engine;
  using Hook = ::torch::autograd::utils::LambdaPostHook;
  using NoSync = ddp::GradientReducer::NoSync;
  using Node = decltype(::torch::autograd::impl::grad_accumulator(at::Tensor()));

  /// Called by autograd when the gradient of a leaf is complete.
  void on_gradient(std::size_t id) {
    if (!is_synced()) return;
    if (backward_.expired()) {
      marked_.assign(leaves_.size(), false);
      // torch destroys the callback with its backward, even if an exception ends that.
      const auto backward = std::make_shared<char>();
      Engine::get_default_engine().queue_callback([this, backward] { finish(); });
      backward_ = backward;
    }
    mark(id);
  }

  void mark(std::size_t id) {
    const c10::NoGradGuard off;
    at::Tensor& gradient = leaves_[id].mutable_grad();
    TensorView array;
    try {
      array = mutable_view(gradient);
    } catch (const Error& error) {
      const auto why = "gradient of " + reducer_.parameters()[id].name + ": " + error.message();
      group_.abort(why);  // Peers wait for this gradient.
      fail(error.code(), why);
    }
    if (options_.gradient_as_bucket_view && !is_in_bucket(id)) {
      gradient = in_bucket(id).copy_(gradient);
      array = reducer_.gradient(id);
    }
    marked_[id] = true;
    reducer_.mark_ready(id, array);
  }

  /// Ends the step. A leaf that the backward did not reach contributes what it has accumulated.
  void finish() {
    for (std::size_t id = 0; id < leaves_.size(); ++id)
      if (!marked_[id] && leaves_[id].grad().defined()) mark(id);
    reducer_.finish();
    take_results();
  }

  /// Gives the leaves those results that the reducer did not write to their gradients.
  void take_results() {
    const c10::NoGradGuard off;
    for (std::size_t id = 0; id < leaves_.size(); ++id) {
      if (options_.find_unused_parameters && !reducer_.is_used(id)) continue;
      at::Tensor& gradient = leaves_[id].mutable_grad();
      if (options_.gradient_as_bucket_view) {
        if (!is_in_bucket(id)) gradient = in_bucket(id);
      } else if (!marked_[id]) {
        gradient = in_bucket(id).clone();
      }
    }
  }

  bool is_in_bucket(std::size_t id) const {
    const at::Tensor& g = leaves_[id].grad();
    return g.defined() && g.has_storage() && g.data_ptr() == reducer_.gradient(id).data;
  }
  at::Tensor in_bucket(std::size_t id) const {
    return at::from_blob(reducer_.gradient(id).data, leaves_[id].sizes(), leaves_[id].options());
  }

  ProcessGroup& group_;
  std::vector<at::Tensor> leaves_;
  const ddp::ReducerOptions options_;
  ddp::GradientReducer reducer_;
  std::vector<std::pair<Node, std::uintptr_t>> hooks_;
  std::vector<bool> marked_;      // By id, since the begin of the last backward.
  std::weak_ptr<void> backward_;  // The backward whose end calls finish().
  std::weak_ptr<NoSync> scope_;   // The scope of no_sync().
};

}  // namespace tutti::libtorch::detail
