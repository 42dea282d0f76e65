#include <tutti/autograd.hpp>

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "autograd/step.hpp"

// Each forward records its transpose here; a Backward applies the transposes.

namespace tutti::internal {

Differentiable Step::with_backward(std::string_view collective, const ConstTensorView& in,
                                   Tensor value, decltype(Transpose::run) run) const {
  auto shared = std::make_shared<const Transpose>(
      Transpose{group.rank(), group.size(), function, collective, value.shape(), input_shape(in),
                value.dtype(), memory(), std::move(run)});
  return {std::move(value), autograd::Backward(std::move(shared))};
}

}  // namespace tutti::internal

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

Differentiable Backward::operator()(ProcessGroup& group, const ConstTensorView& gradient,
                                    const CallOptions& options) const {
  const auto& to = *transpose_;
  const internal::Step step{group, to.function, options, &to};
  if (group.rank() != to.rank || group.size() != to.size)
    step.refuse(Errc::invalid_argument,
                fmt::format("this group has rank {} of {}, but the forward was called on rank {} "
                            "of {}; pass the same group",
                            group.rank(), group.size(), to.rank, to.size));
  return to.run(step, gradient);
}

std::string_view Backward::collective() const noexcept {
  return transpose_->collective;
}

}  // namespace autograd
}  // namespace tutti
