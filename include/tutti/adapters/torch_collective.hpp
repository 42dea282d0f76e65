#pragma once

#include <functional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tutti/adapters/torch_tensor.hpp>
#include <tutti/gather.hpp>
#include <tutti/process_group.hpp>

// A collective as a node of torch's graph, and what the functions of torch.hpp share.

namespace tutti::libtorch {

namespace detail {

using List = ::torch::autograd::variable_list;

/// What a forward leaves: its result, and the gradient of its input by that of the result.
struct Step {
  at::Tensor out;
  std::function<at::Tensor(const at::Tensor& grad_out, const List& saved)> backward;
  List saved{};
};
using Run = std::function<Step(const at::Tensor& in)>;

struct Held final : ::torch::CustomClassHolder {
  explicit Held(Step&& step) : backward(std::move(step.backward)) {}
  decltype(Step::backward) backward;
};

struct Collective final : ::torch::autograd::Function<Collective> {
  using Context = ::torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& in, const at::Tensor&,
                            const Run& run) {
    Step step = run(in.contiguous());
    const at::Tensor out = step.out;
    context->save_for_backward(std::move(step.saved));
    context->saved_data["backward"] =
        c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(step)));
    return out;
  }
  static List backward(Context* context, const List& grads) {
    const auto held = context->saved_data["backward"].toCapsule();
    const auto& step = static_cast<const Held&>(*held);
    return {step.backward(grads[0], context->get_saved_variables()), {}, {}};
  }
};

inline at::Tensor record(const at::Tensor& in, const Run& run) {
  if (!c10::GradMode::is_enabled()) return run(in.contiguous()).out;
  // It makes the result require grad on every rank, so that all come to the backward or none.
  const at::Tensor anchor = at::empty({0});
  anchor.set_requires_grad(true);
  return Collective::apply(in, anchor, run);
}

inline at::IntArrayRef sizes_of(const Shape& shape) {
  return {shape.dims().data(), shape.ndim()};
}

/// The value as a tensor; in a group of one rank `in` itself.
inline at::Tensor result(MaybeOwned&& value, const at::Tensor& in) {
  if (!value.is_input()) return to_torch(std::move(value));
  const auto sizes = sizes_of(value.shape());
  return in.sizes() == sizes ? in : in.view(sizes);
}

inline GatherOptions here(GatherOptions options) {
  if (options.memory == nullptr) options.memory = &memory();
  return options;
}
/// What of them holds for a later call too.
inline GatherOptions later(const GatherOptions& options, const RowLayout* layout) {
  GatherOptions kept;
  kept.layout = layout;
  kept.algo = options.algo;
  kept.memory = options.memory;
  return kept;
}

/// The factor that a sum lacks to be avg or premul_sum.
inline at::Tensor scaled(const at::Tensor& sum, ReduceOp op, const ProcessGroup& group) {
  if (op.kind == ReduceOp::Kind::avg) return sum / group.size();
  return op.kind == ReduceOp::Kind::premul_sum ? sum * op.scale : sum;
}

/// Zeros that depend on `empty`, a rank's part of a rooted call, so that the next backward comes
/// by.
inline at::Tensor zeros_after(const at::Tensor& empty, at::IntArrayRef sizes) {
  return at::zeros(sizes, empty.options()) + empty.sum();
}

}  // namespace detail

}  // namespace tutti::libtorch
