#include <cstddef>

#include "collectives.hpp"
#include "kernels/reduce.hpp"

namespace tutti::backend::hier {
namespace {

std::size_t count_of(const Shape& shape) {
  return static_cast<std::size_t>(shape.numel());
}

}  // namespace

bool Collectives::averages_halves(const Op& op) {
  return op.reduce.kind == ReduceOp::Kind::avg && op.in.dtype == DType::f16;
}

Op Collectives::in_float(const Op& op) {
  Op wide = op;
  wide.in.dtype = DType::f32;
  wide.out.dtype = DType::f32;
  return wide;
}

void Collectives::average_halves(const Op& op) {
  Op wide = in_float(op);
  const bool scatters = op.kind == Operation::reduce_scatter;
  const auto in = count_of(op.in.shape);
  const auto out = scatters ? count_of(op.out.shape) : 0;
  auto* const memory = wide_scratch_.at_least((in + out) * sizeof(float));
  internal::widen_halves(memory, op.in.data, in);
  wide.in.data = memory;
  wide.out.data = memory + (scatters ? in * sizeof(float) : 0);  // Otherwise in place.
  scatters ? reduce_scatter(wide) : reduce(wide);
  const int rank =
      topology_.ranks_of(topology_.host())[static_cast<std::size_t>(topology_.place())];
  if (op.kind != Operation::reduce || rank == op.root)
    internal::narrow_halves(op.out.data, wide.out.data, count_of(op.out.shape));
}

}  // namespace tutti::backend::hier
