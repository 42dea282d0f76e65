#include "autograd/call.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rows/announcement.hpp"

namespace tutti::internal {

void AutogradCheck::refuse(Errc code, const std::string& message) const {
  throw gather_error(code, group_, fmt::format("autograd::{}", function_), group_.rank(), message);
}

void AutogradCheck::dtype(DType dtype) const {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
      return;
    default:
      refuse(Errc::invalid_argument,
             fmt::format("{} has no gradient; f16, bf16, f32 and f64 have", name_of(dtype)));
  }
}

void AutogradCheck::op(ReduceOp op, std::initializer_list<ReduceOp::Kind> among) const {
  if (std::ranges::find(among, op.kind) != among.end()) return;
  std::vector<std::string_view> names;
  for (const auto kind : among) names.push_back(name_of(kind));
  refuse(Errc::invalid_argument,
         fmt::format("{} has no gradient here; {} have", name_of(op.kind), fmt::join(names, ", ")));
}

void AutogradCheck::linear(ReduceOp op) const {
  using enum ReduceOp::Kind;
  this->op(op, {sum, avg, premul_sum});
  if (op.kind == premul_sum) host();  // The vjp scales.
}

void AutogradCheck::host() const {
  const auto device = group_.memory().device();
  if (device.type == DeviceType::cpu) return;
  refuse(Errc::unsupported,
         fmt::format("this gradient is computed in host memory, but the group works on {}; use sum "
                     "or avg",
                     to_string(device)));
}

void AutogradCheck::root(int root) const {
  if (root == 0) return;
  refuse(Errc::invalid_argument, fmt::format("root is {}; this group has only rank 0", root));
}

void AutogradCheck::layout(const ConstTensorView& in, const RowLayout& layout) const {
  array(in);
  if (layout.ranks() == 1 && layout[0] == in.shape.rows()) return;
  refuse(Errc::invalid_argument,
         fmt::format("the layout is {}, but the only rank has {}, which has {} rows",
                     to_string(layout), to_string(in.shape), in.shape.rows()));
}

void AutogradCheck::array(const ConstTensorView& in) const {
  if (const auto error = unfit(in, group_.memory().device()))
    refuse(error->code(), error->message());
}

void AutogradCheck::gradient(const ConstTensorView& grad_out, const Shape& shape,
                             DType dtype) const {
  array(grad_out);
  if (grad_out.dtype != dtype || !(grad_out.shape == shape))
    refuse(Errc::invalid_argument,
           fmt::format("the gradient is {} {}, but the forward's value was {} {}",
                       name_of(grad_out.dtype), to_string(grad_out.shape), name_of(dtype),
                       to_string(shape)));
}

}  // namespace tutti::internal
