#pragma once

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <tutti/adapters/torch/detail/loss_node.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// The losses of <tutti/losses/> as functions of torch's graph. docs/adapters.md.

namespace tutti::libtorch {

/// Calls a loss: `call` takes a view of the logits, f64 or f32, and returns a LossResult. It may
/// pass weights, or call without a group. On a device it takes CallOptions too, which have torch's
/// current stream.
/// @return the loss [], the same on every rank: f64 for f64 logits, otherwise f32, on their device.
///         backward() gives the logits LossResult::grad times the incoming gradient, and sends
///         nothing; on one rank alone it is allowed, too. A second derivative is Error unsupported.
/// @throws as `call`.
template <typename Call>
at::Tensor loss_of(const at::Tensor& logits, const Call& call) {
  const at::Tensor none = at::empty({0});
  return detail::LossNode::apply(logits, none, none, none, "loss_of", [&] {
    const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    // A gradient of halves could be too small, or too large with the factor of a scaled loss.
    const at::Tensor x = logits.detach().resolve_neg().to(type).contiguous();
    losses::LossResult result = [&] {
      if constexpr (requires { call(view(x), CallOptions()); })
        return call(view(x), detail::on_current_stream(logits.device()));
      else
        return call(view(x));
    }();
    at::Tensor grad = to_torch(std::move(result.grad));
    // The graph may outlive the group, in whose memory the result is.
    if (!x.device().is_cpu()) grad = grad.clone();
    return std::pair(at::full({}, result.loss, x.options().dtype(type)),
                     detail::LossTensors{grad, at::Tensor(), at::Tensor(), at::Tensor()});
  });
}

/// Calls a loss with the rows of this rank: any of those that take a losses::Batch. Collective.
/// On a device it runs on torch's current stream.
template <typename Loss>
at::Tensor loss_of(ProcessGroup& group, Loss& loss, const at::Tensor& logits,
                   const at::Tensor& targets, const CallOptions& options = {}) {
  const at::Tensor rows = targets.detach().resolve_neg().contiguous();
  const CallOptions on = detail::on_current_stream(logits.device(), options);
  return loss_of(logits, [&](const ConstTensorView& x) {
    return loss(group, losses::Batch{x, view(rows)}, on);
  });
}

}  // namespace tutti::libtorch
