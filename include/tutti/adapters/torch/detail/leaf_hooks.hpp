#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::libtorch::detail {

/// Calls a function each time autograd has completed the gradient of a leaf. Not copied.
class LeafHooks {
 public:
  /// Gets the index of the leaf, and the gradient that autograd computed. It was added to the
  /// leaf's gradient, or it became that and shares its memory.
  using OnGradient = std::function<void(std::size_t id, const at::Tensor& computed)>;

  LeafHooks(const std::vector<at::Tensor>& leaves, const OnGradient& on_gradient) {
    hooks_.reserve(leaves.size());
    for (std::size_t id = 0; id < leaves.size(); ++id) {
      const auto call = [on_gradient, id](const auto& outputs, const auto& inputs) {
        on_gradient(id, inputs.empty() ? at::Tensor() : inputs.front());
        return outputs;
      };
      const Node node = ::torch::autograd::impl::grad_accumulator(leaves[id]);
      hooks_.emplace_back(node, node->add_post_hook(std::make_unique<Hook>(call)));
    }
  }
  LeafHooks(const LeafHooks&) = delete;
  ~LeafHooks() {
    for (const auto& [node, key] : hooks_) node->del_post_hook(key);
  }

  /// True if the leaf's gradient is `computed`, whose memory other tensors use too, such as a
  /// gradient that the backward still reads.
  static bool is_shared(const at::Tensor& gradient, const at::Tensor& computed) {
    if (!computed.defined() || computed.is_same(gradient) || !computed.has_storage() ||
        !gradient.has_storage() || !computed.is_alias_of(gradient))
      return false;
    // Autograd's views keep the tensor of which they are views.
    const bool with_base = computed.is_view() && computed._base().use_count() == 1;
    return gradient.storage().use_count() > (with_base ? 3U : 2U);
  }

 private:
  using Hook = ::torch::autograd::utils::LambdaPostHook;
  using Node = decltype(::torch::autograd::impl::grad_accumulator(at::Tensor()));

  std::vector<std::pair<Node, std::uintptr_t>> hooks_;
};

}  // namespace tutti::libtorch::detail
