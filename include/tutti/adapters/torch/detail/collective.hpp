#pragma once

#include <functional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/autograd.hpp>

// A collective as a node of torch's graph.

namespace tutti::libtorch::detail {

using Forward = std::function<autograd::Differentiable(const ConstTensorView& in)>;

/// Returns the value of forward(in), where `in` is made contiguous; records a node if gradients are
/// enabled.
inline at::Tensor record(ProcessGroup& group, const at::Tensor& in, const Forward& forward);

/// The node of one forward in torch's graph. Its backward records nodes as well.
struct Collective final : ::torch::autograd::Function<Collective> {
  using Context = ::torch::autograd::AutogradContext;
  using List = ::torch::autograd::variable_list;

  struct Back final : ::torch::CustomClassHolder {
    Back(const ProcessGroup& g, autograd::Backward b) : group(g.share()), back(std::move(b)) {}
    mutable ProcessGroup group;
    autograd::Backward back;
  };

  static at::Tensor forward(Context* context, const at::Tensor& in, const at::Tensor&,
                            ProcessGroup* group, const Forward& forward) {
    const at::Tensor x = in.contiguous();
    autograd::Differentiable done = forward(view(x));
    if (context != nullptr)
      context->saved_data["back"] =
          c10::IValue::make_capsule(c10::make_intrusive<Back>(*group, std::move(done.back)));
    return to_torch(std::move(done.value));
  }
  static List backward(Context* context, const List& grads) {
    const auto capsule = context->saved_data["back"].toCapsule();
    const auto& saved = static_cast<const Back&>(*capsule);
    const auto back = [&](const ConstTensorView& gradient) {
      return saved.back(saved.group, gradient, on_current_stream(grads[0].device()));
    };
    return {record(saved.group, grads[0], back), {}, {}, {}, {}};
  }
};

inline at::Tensor record(ProcessGroup& group, const at::Tensor& in, const Forward& forward) {
  const at::Tensor anchor = at::empty({0});
  if (!c10::GradMode::is_enabled())
    return Collective::forward(nullptr, in, anchor, &group, forward);
  // Makes the result require grad on every rank, so that either all ranks reach the backward or
  // none.
  anchor.set_requires_grad(true);
  return Collective::apply(in, anchor, &group, forward);
}

/// The options for a call with a tensor: results in torch's memory, unless the caller has set
/// another, and on a device torch's current stream.
inline CallOptions in_torch(const at::Tensor& x, CallOptions options) {
  if (options.memory == nullptr) options.memory = &memory(x.device());
  return on_current_stream(x.device(), options);
}
template <typename T>
const T& in_torch(const at::Tensor&, const T& argument) {
  return argument;
}

/// Records forward(group, in, args...) as a node, with results in torch's memory.
template <typename Forward, typename... Args>
at::Tensor apply(const Forward& forward, ProcessGroup& group, const at::Tensor& in,
                 const Args&... args) {
  return record(group, in, [&](const ConstTensorView& x) {
    return autograd::Differentiable(forward(group, x, in_torch(in, args)...));
  });
}

/// The input of a node that reads no data: [0] on the group's device, attached to the graph of `x`
/// if `x` is in one.
inline at::Tensor no_part_of(ProcessGroup& group, const at::Tensor& x) {
  const c10::Device device = to_torch(group.memory().device());
  return x.defined() ? x.reshape({-1}).narrow(0, 0, 0).to(device) : at::empty({0}, device);
}

}  // namespace tutti::libtorch::detail
