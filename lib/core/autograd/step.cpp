#include "autograd/step.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/validate.hpp"
#include "kernels/gradients.hpp"
#include "rows/metadata_exchange.hpp"

namespace tutti::internal {

void Step::refuse(Errc code, const std::string& message) const {
  throw gather_error(code, group, name(), group.rank(), message);
}

std::string Step::name() const {
  return fmt::format("autograd::{}{}", function, transpose != nullptr ? " (backward)" : "");
}

void Step::check_input(const ConstTensorView& in) const {
  if (transpose == nullptr) check_dtype(in.dtype);
  if (const auto why = refusal_of([&] { check_array("the array", in, group.memory().device()); }))
    refuse(why->code(), why->message());
  if (in.dtype != input_dtype(in) || !(in.shape == input_shape(in)))
    refuse(
        Errc::invalid_argument,
        fmt::format("the gradient is {} {}, but the forward's value was {} {}; they must be equal",
                    name_of(in.dtype), to_string(in.shape), name_of(transpose->dtype),
                    to_string(transpose->from)));
}

void Step::check_dtype(DType dtype) const {
  if (has_gradient(dtype)) return;
  refuse(Errc::invalid_argument,
         fmt::format("{} has no gradient; use one of: f16, bf16, f32, f64", name_of(dtype)));
}

void Step::check_op(ReduceOp op, std::initializer_list<ReduceOp::Kind> among) const {
  if (std::ranges::find(among, op.kind) != among.end()) return;
  std::vector<std::string_view> names;
  for (const auto kind : among) names.push_back(name_of(kind));
  refuse(Errc::invalid_argument, fmt::format("{} has no gradient in {}; use one of: {}",
                                             name_of(op.kind), function, fmt::join(names, ", ")));
}

void Step::check_linear(ReduceOp op) const {
  using enum ReduceOp::Kind;
  check_op(op, {sum, avg, premul_sum});
  if (op.kind == premul_sum) check_host();  // The backward scales on the host.
}

void Step::check_all_reduce(ReduceOp op) const {
  using enum ReduceOp::Kind;
  check_op(op, {sum, avg, premul_sum, min, max, prod});
  if (op.kind != sum && op.kind != avg) check_host();
}

void Step::check_host() const {
  const auto device = group.memory().device();
  if (device.type == DeviceType::cpu) return;
  refuse(Errc::unsupported,
         fmt::format("this gradient is computed in host memory, but the group works on {}; use sum "
                     "or avg",
                     to_string(device)));
}

Tensor Step::make(const Shape& shape, DType dtype) const {
  auto* const given = memory();
  return {given != nullptr ? *given : group.memory(), shape, dtype, options.stream};
}

}  // namespace tutti::internal
