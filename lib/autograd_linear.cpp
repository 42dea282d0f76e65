#include "internal/autograd_linear.hpp"

#include "internal/autograd_kernels.hpp"
#include "internal/gather_algo.hpp"
#include "internal/reduce_kernels.hpp"

namespace tutti::internal {

using Kind = ReduceOp::Kind;

void scale_gradient(ReduceOp op, int ranks, Tensor& grad) {
  if (op.kind == Kind::avg)
    divide(grad.dtype(), grad.data(), count_of(grad), static_cast<std::size_t>(ranks));
  if (op.kind == Kind::premul_sum) scale(grad.dtype(), grad.data(), count_of(grad), op.scale);
}

Value reduce_alone(ProcessGroup& group, const ConstTensorView& in, ReduceOp op, Memory& memory,
                   Stream stream) {
  if (op.kind != Kind::premul_sum || op.scale == 1) return Value(in);
  Tensor out(memory, in.shape, in.dtype, stream);
  copy_rows(group, out.data(), in.data, in.bytes(), stream);
  scale_gradient(op, 1, out);
  return out;
}

}  // namespace tutti::internal
