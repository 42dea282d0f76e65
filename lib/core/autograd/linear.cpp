#include "autograd/linear.hpp"

#include <algorithm>
#include <array>

#include "group/call.hpp"
#include "kernels/gradients.hpp"
#include "kernels/reduce.hpp"
#include "rows/row_views.hpp"

namespace tutti::internal {

using Kind = ReduceOp::Kind;

namespace {

void fill_with_zeros(const Step& step, Tensor& out) {
  auto& group = step.group;
  if (on_host(group)) {
    fill_identity(out.dtype(), Kind::sum, out.data(), count_of(out));
    return;
  }
  // Copies up to 4096 bytes of zeros from the host, then doubles them on the device.
  static constexpr std::array<std::byte, 4096> zeros{};
  auto* const to = static_cast<std::byte*>(out.data());
  auto done = std::min(out.bytes(), zeros.size());
  copy_rows(group, to, zeros.data(), done, step.options.stream);
  while (done < out.bytes()) {
    const auto more = std::min(done, out.bytes() - done);
    copy_rows(group, to + done, to, more, step.options.stream);
    done += more;
  }
}

}  // namespace

void scale_gradient(ReduceOp op, int ranks, Tensor& grad) {
  if (op.kind == Kind::avg)
    divide(grad.dtype(), grad.data(), count_of(grad), static_cast<std::size_t>(ranks));
  if (op.kind == Kind::premul_sum) scale(grad.dtype(), grad.data(), count_of(grad), op.scale);
}

bool averages_on_device(ProcessGroup& group, ReduceOp op) {
  return op.kind == Kind::avg && !on_host(group);
}

void pad_with_zeros(const Step& step, Tensor& out, std::size_t at, const ConstTensorView& part) {
  fill_with_zeros(step, out);
  copy_rows(step.group, static_cast<std::byte*>(out.data()) + at, part.data, part.bytes(),
            step.options.stream);
}

}  // namespace tutti::internal
