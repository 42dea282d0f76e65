#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/engine.h>

#include <tutti/adapters/torch/detail/arithmetic.hpp>
#include <tutti/adapters/torch/detail/leaf_hooks.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::libtorch::detail {

/// Reduces the gradients of leaf tensors while a backward runs. Not copied: its hooks refer to it.
class Gradients {
 public:
  Gradients(ProcessGroup& group, std::vector<at::Tensor> leaves,
            std::vector<ddp::Parameter> parameters, const ddp::ReducerOptions& options,
            std::vector<ddp::Parameter> buffers)
      : group_(group.share()),
        leaves_(std::move(leaves)),
        side_(side_of(leaves_)),
        options_(with_arithmetic(options, side_)),
        held_(leaves_.size()),
        reducer_(group, std::move(parameters), options_, std::move(buffers)),
        hooks_(leaves_, [this](auto id, const auto& computed) { on_gradient(id, computed); }) {}
  Gradients(const Gradients&) = delete;
  ~Gradients() {
    const c10::NoGradGuard off;
    for (std::size_t id = 0; id < leaves_.size(); ++id) {
      if (!is_in_bucket(id)) continue;
      at::Tensor& gradient = leaves_[id].mutable_grad();
      try {
        gradient = gradient.clone();  // The bucket ends with the reducer.
      } catch (...) {                 // There is no memory.
        gradient.reset();
      }
    }
    try {
      if (side_) {
        // Otherwise the device would wait for peers of a backward that threw.
        if (std::ranges::any_of(held_, [](const auto& gradient) { return gradient.defined(); }))
          group_.abort("DistributedDataParallel is destroyed within a step");
        side_->synchronize();  // Both may still copy from the buckets.
        synchronize(side_->device());
      }
    } catch (...) {  // The device is lost.
    }
  }

  ddp::GradientReducer& reducer() noexcept { return reducer_; }
  std::shared_ptr<void> no_sync() {
    const auto scope = is_synced() ? std::make_shared<NoSync>(reducer_.no_sync()) : scope_.lock();
    scope_ = scope;
    return scope;
  }
  bool is_synced() const noexcept { return scope_.expired(); }

  void add_rows(double rows) noexcept { rows_ += rows; }
  void set_group(ProcessGroup& group) {
    if (side_) {
      // The streams may still use the buckets, which end here.
      side_->synchronize();
      synchronize(side_->device());
    }
    reducer_.set_group(group);
    const c10::NoGradGuard off;
    for (const auto& leaf : leaves_) leaf.mutable_grad().reset();
    held_.assign(leaves_.size(), {});
    rows_ = 0;
    group_ = group.share();
  }
  void step_empty() {
    marked_.assign(leaves_.size(), false);
    end_step([this] { reducer_.step_empty(); });
  }

 private:
  using Engine = ::torch::autograd::Engine;
  using NoSync = ddp::GradientReducer::NoSync;

  static std::optional<c10::Stream> side_of(const std::vector<at::Tensor>& leaves) {
    if (leaves.empty() || leaves.front().is_cpu()) return {};
    return beside(current_stream(leaves.front().device()));
  }
  static ddp::ReducerOptions with_arithmetic(ddp::ReducerOptions options,
                                             const std::optional<c10::Stream>& side) {
    if (side && options.arithmetic == nullptr)
      options.arithmetic = std::make_shared<Arithmetic>(*side);
    return options;
  }

  /// Called by autograd when the gradient of a leaf is complete.
  void on_gradient(std::size_t id, const at::Tensor& computed) {
    if (!is_synced()) return;
    if (backward_.expired()) {
      marked_.assign(leaves_.size(), false);
      // torch destroys the callback with its backward, even if an exception ends that.
      const auto backward = std::make_shared<char>();
      Engine::get_default_engine().queue_callback([this, backward] { finish(); });
      backward_ = backward;
    }
    mark(id, computed);
  }

  void mark(std::size_t id, const at::Tensor& computed = {}) {
    const c10::NoGradGuard off;
    at::Tensor& gradient = leaves_[id].mutable_grad();
    TensorView array;
    try {
      if (LeafHooks::is_shared(gradient, computed)) gradient = gradient.clone();
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
    reducer_.mark_ready(id, array, producer_of(gradient));
    held_[id] = gradient;
  }

  /// On a device, the stream that copies and reduces gradients, beside the backward. Follows the
  /// stream of this thread, which autograd has made that of the gradient.
  Stream producer_of(const at::Tensor& gradient) {
    if (!side_) return {};
    order(current_stream(gradient.device()), *side_);
    return stream_of(*side_);
  }

  /// Ends the step. A leaf that the backward did not reach contributes what it has accumulated.
  void finish() {
    for (std::size_t id = 0; id < leaves_.size(); ++id)
      if (!marked_[id] && leaves_[id].grad().defined()) mark(id);
    end_step([this] {
      const double rows = std::exchange(rows_, 0);
      options_.average_over_rows ? reducer_.finish(rows) : reducer_.finish();
    });
  }

  /// The reducer uses no gradient any more when `end` has returned or thrown, except on the side
  /// stream.
  void end_step(const std::function<void()>& end) {
    std::exception_ptr error;
    try {
      end();
    } catch (...) {
      error = std::current_exception();
    }
    if (side_) order(*side_, current_stream(side_->device()));
    held_.assign(leaves_.size(), {});
    if (error != nullptr) std::rethrow_exception(error);
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
    if (!options_.gradient_as_bucket_view || !g.has_storage()) return false;
    return g.data_ptr() == reducer_.gradient(id).data;
  }
  at::Tensor in_bucket(std::size_t id) const {
    return from_blob(reducer_.gradient(id).data, leaves_[id].sizes(), leaves_[id].options());
  }

  ProcessGroup group_;
  std::vector<at::Tensor> leaves_;
  const std::optional<c10::Stream> side_;  // Set on a device.
  const ddp::ReducerOptions options_;
  std::vector<at::Tensor> held_;  // By id: marked gradients, which live until the step ends.
  ddp::GradientReducer reducer_;
  double rows_ = 0;               // Of this rank, since the last step.
  std::vector<bool> marked_;      // By id, since the begin of the last backward.
  std::weak_ptr<void> backward_;  // The backward whose end calls finish().
  std::weak_ptr<NoSync> scope_;   // The scope of no_sync().
  LeafHooks hooks_;
};

}  // namespace tutti::libtorch::detail
