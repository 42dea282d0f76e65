#include "autograd/linear.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "group/host_call.hpp"
#include "kernels/gradients.hpp"
#include "kernels/reduce.hpp"
#include "rows/gather_algo.hpp"

namespace tutti::internal {

using Kind = ReduceOp::Kind;

void scale_gradient(ReduceOp op, int ranks, Tensor& grad) {
  if (op.kind == Kind::avg)
    divide(grad.dtype(), grad.data(), count_of(grad), static_cast<std::size_t>(ranks));
  if (op.kind == Kind::premul_sum) scale(grad.dtype(), grad.data(), count_of(grad), op.scale);
}

bool averages_on_device(ProcessGroup& group, ReduceOp op) {
  return op.kind == Kind::avg && !on_host(group);
}

void average_parts(ProcessGroup& group, Tensor& out, std::size_t at, const ConstTensorView& part,
                   const CallOptions& options) {
  fill_with_zeros(group, out, options.stream);
  copy_rows(group, static_cast<std::byte*>(out.data()) + at, part.data, part.bytes(),
            options.stream);
  group.all_reduce(out, ReduceOp::avg, options);
}

void fill_with_zeros(ProcessGroup& group, Tensor& out, Stream stream) {
  if (on_host(group)) {
    std::memset(out.data(), 0, out.bytes());
    return;
  }
  // A few from the host, and then twice as many each time.
  static constexpr std::array<std::byte, 4096> zeros{};
  auto* const to = static_cast<std::byte*>(out.data());
  auto done = std::min(out.bytes(), zeros.size());
  copy_rows(group, to, zeros.data(), done, stream);
  while (done < out.bytes()) {
    const auto more = std::min(done, out.bytes() - done);
    copy_rows(group, to + done, to, more, stream);
    done += more;
  }
}

MaybeOwned reduce_alone(ProcessGroup& group, const ConstTensorView& in, ReduceOp op, Memory& memory,
                        Stream stream) {
  if (op.kind != Kind::premul_sum || op.scale == 1) return MaybeOwned(in);
  Tensor out(memory, in.shape, in.dtype, stream);
  copy_rows(group, out.data(), in.data, in.bytes(), stream);
  scale_gradient(op, 1, out);
  return out;
}

}  // namespace tutti::internal
