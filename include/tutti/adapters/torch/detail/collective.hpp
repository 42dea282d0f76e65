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

using Call = std::function<autograd::Differentiable(const ConstTensorView& in)>;
at::Tensor record(ProcessGroup& group, const at::Tensor& in, const Call& call);

/// The node of one forward in torch's graph. Its backward calls the Backward that the forward
/// returned, and records that call as a node as well.
struct Collective final : ::torch::autograd::Function<Collective> {
  using Context = ::torch::autograd::AutogradContext;
  using List = ::torch::autograd::variable_list;

  struct Back final : ::torch::CustomClassHolder {
    Back(const ProcessGroup& g, autograd::Backward b) : group(g.share()), backward(std::move(b)) {}
    mutable ProcessGroup group;
    autograd::Backward backward;
  };

  static at::Tensor forward(Context* context, const at::Tensor& in, const at::Tensor&,
                            ProcessGroup* group, const Call& call) {
    const at::Tensor x = in.contiguous();
    auto done = call(view(x));
    context->saved_data["back"] =
        c10::IValue::make_capsule(c10::make_intrusive<Back>(*group, std::move(done.back)));
    return to_torch(std::move(done.value));
  }
  static List backward(Context* context, const List& grads) {
    const auto capsule = context->saved_data["back"].toCapsule();
    const auto& back = static_cast<const Back&>(*capsule);
    const auto call = [&](const ConstTensorView& gradient) {
      return back.backward(back.group, gradient);
    };
    return {record(back.group, grads[0], call), {}, {}, {}};
  }
};

/// Returns call(in); records a node if gradients are enabled.
inline at::Tensor record(ProcessGroup& group, const at::Tensor& in, const Call& call) {
  if (!c10::GradMode::is_enabled()) {
    const at::Tensor x = in.contiguous();
    return to_torch(call(view(x)).value);
  }
  // Makes the result require grad on every rank, so that either all ranks reach the backward or
  // none.
  const at::Tensor anchor = at::empty({0});
  anchor.set_requires_grad(true);
  return Collective::apply(in, anchor, &group, call);
}

/// Sets options.memory to torch's memory, unless the caller has set it.
inline CallOptions in_torch(CallOptions options) {
  if (options.memory == nullptr) options.memory = &memory();
  return options;
}
template <typename T>
const T& in_torch(const T& argument) {
  return argument;
}

/// Records forward(group, in, args...) as a node, with results in torch's memory.
template <typename Forward, typename... Args>
at::Tensor apply(const Forward& forward, ProcessGroup& group, const at::Tensor& in,
                 const Args&... args) {
  return record(group, in, [&](const ConstTensorView& x) {
    return autograd::Differentiable(forward(group, x, in_torch(args)...));
  });
}

/// The input of a node that reads no data: [0], attached to the graph of `x` if `x` is in one.
inline at::Tensor no_part_of(const at::Tensor& x) {
  return x.defined() ? x.reshape({-1}).narrow(0, 0, 0) : at::empty({0});
}

}  // namespace tutti::libtorch::detail
