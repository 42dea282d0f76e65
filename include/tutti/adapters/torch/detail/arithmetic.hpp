#pragma once

#include <cstdint>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include <tutti/adapters/torch/detail/device.hpp>
#include <tutti/ddp/device_arithmetic.hpp>

namespace tutti::libtorch::detail {

/// torch's operators on the arrays of hooks, on one stream.
class Arithmetic final : public ddp::DeviceArithmetic {
 public:
  explicit Arithmetic(const c10::Stream& stream) : stream_(stream) {}

  void scale(const ConstTensorView& from, double factor, const TensorView& to, bool add,
             Stream stream) override {
    const Scope scope(*this, stream);
    const at::Tensor in = tensor_of(from).view({-1});
    at::Tensor out = tensor_of(to).view({-1});
    if (add)
      out.add_(in, factor);
    else if (factor == 1)
      out.copy_(in);
    else
      out.copy_(in * factor);
  }
  void multiply(const ConstTensorView& a, bool transpose_a, const ConstTensorView& b,
                bool transpose_b, const TensorView& out, Stream stream) override {
    const Scope scope(*this, stream);
    const auto factor = [](const ConstTensorView& x, bool transposed) {
      return transposed ? tensor_of(x).t() : tensor_of(x);
    };
    tensor_of(out).copy_(factor(a, transpose_a).mm(factor(b, transpose_b)));
  }
  void orthonormalize(const TensorView& rows, double epsilon, const ConstTensorView& refill,
                      Stream stream) override {
    const Scope scope(*this, stream);
    const at::Tensor all = tensor_of(rows);
    for (std::int64_t k = 0; k < all.size(0); ++k) {
      const at::Tensor before = all.narrow(0, 0, k);
      at::Tensor row = orthonormal(all[k], before, epsilon);
      if (refill.data != nullptr) {
        const at::Tensor other = orthonormal(tensor_of(refill)[k], before, epsilon);
        row = at::where(row.ne(0).any().logical_and(row.isfinite().all()), row, other);
      }
      all[k].copy_(row);
    }
  }
  void subtract(const TensorView& m, const ConstTensorView& product, Stream stream) override {
    const Scope scope(*this, stream);
    at::Tensor error = tensor_of(m);
    error.sub_(tensor_of(product).view_as(error));
    error.nan_to_num_(0, 0, 0);
  }

 private:
  struct Scope {
    Scope(const Arithmetic& self, Stream stream) : on(self.named(stream)) {}
    c10::NoGradGuard off;
    c10::StreamGuard on;
  };
  c10::Stream named(Stream stream) const {
    if (stream == stream_of(stream_)) return stream_;
    if (stream == Stream()) return c10::Stream(c10::Stream::DEFAULT, stream_.device());
    fail(Errc::invalid_argument, "torch: a hook computes on a stream that is not the reducer's");
  }

  static at::Tensor tensor_of(const ConstTensorView& x) {
    const auto dims = x.shape.dims();
    return from_blob(const_cast<void*>(x.data), at::IntArrayRef(dims.data(), dims.size()),
                     at::TensorOptions(to_torch(x.dtype)).device(to_torch(x.device)));
  }
  /// `row` without its projections on the rows `before`, of length 1; 0 if nothing remains. A
  /// second pass removes the rounding errors of the first. What it leaves of a dependent row is
  /// much shorter.
  static at::Tensor orthonormal(const at::Tensor& row, const at::Tensor& before, double epsilon) {
    at::Tensor rest = row - before.t().mv(before.mv(row));
    at::Tensor length = rest.norm();
    at::Tensor depends = length.eq(0);
    if (epsilon == 0 && before.size(0) != 0) {
      const at::Tensor once = length;
      rest = rest - before.t().mv(before.mv(rest));
      length = rest.norm();
      const double negligible = row.scalar_type() == at::kFloat ? 1e-6 : 1e-14;
      depends = length.le(row.norm() * negligible).logical_or(length.lt(once / 2));
    }
    return at::where(depends, at::zeros_like(rest), rest / (length + epsilon));
  }

  const c10::Stream stream_;
};

}  // namespace tutti::libtorch::detail
