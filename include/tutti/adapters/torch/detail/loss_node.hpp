#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tutti/error.hpp>

// A loss as a node of torch's graph. Its forward computes the derivatives.

namespace tutti::libtorch::detail {

using LossTensors = ::torch::autograd::variable_list;

/// The backward: a node with the inputs of the loss, so that a second derivative reaches it.
struct LossBackward final : ::torch::autograd::Function<LossBackward> {
  using Context = ::torch::autograd::AutogradContext;
  using Scaled = std::function<LossTensors(const at::Tensor& gradient)>;

  static LossTensors forward(Context* context, const at::Tensor& gradient, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const std::string& name, const Scaled& scaled) {
    context->saved_data["name"] = name;
    return scaled(gradient);
  }
  static LossTensors backward(Context* context, const LossTensors&) {
    fail(Errc::unsupported, context->saved_data["name"].toStringRef() +
                                " has no second derivative: its forward computes the gradients");
  }
};

/// The loss. Inputs that a loss does not have are empty tensors.
struct LossNode final : ::torch::autograd::Function<LossNode> {
  using Context = ::torch::autograd::AutogradContext;
  /// Returns the loss and the derivatives by the inputs: on their devices, but not rounded to
  /// their dtypes, which may be too small without the factor of a scaled loss.
  using Forward = std::function<std::pair<at::Tensor, LossTensors>()>;

  static at::Tensor forward(Context* context, const at::Tensor& a, const at::Tensor& b,
                            const at::Tensor& c, const at::Tensor& d, const std::string& name,
                            const Forward& call) {
    auto [loss, derivatives] = call();
    LossTensors saved{a, b, c, d};
    saved.insert(saved.end(), derivatives.begin(), derivatives.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["name"] = name;
    return loss;
  }
  static LossTensors backward(Context* context, const LossTensors& gradients) {
    const LossTensors saved = context->get_saved_variables();
    LossTensors scaled = LossBackward::apply(
        gradients[0], saved[0], saved[1], saved[2], saved[3],
        context->saved_data["name"].toStringRef(), [&](const at::Tensor& gradient) {
          LossTensors defined;
          for (std::size_t i = 4; i < saved.size(); ++i)
            if (saved[i].defined())
              defined.push_back(
                  (saved[i] * gradient.to(saved[i].options())).to(saved[i - 4].scalar_type()));
          return defined;
        });
    LossTensors out(6);  // Nothing for the last two arguments.
    for (std::size_t i = 4, next = 0; i < saved.size(); ++i)
      if (saved[i].defined()) out[i - 4] = scaled[next++];
    return out;
  }
};

}  // namespace tutti::libtorch::detail
