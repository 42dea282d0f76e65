#pragma once

#include <tutti/tensor.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Arithmetic on the arrays of a device, for hooks that compute. The library computes on the host
/// alone; a framework brings its own operators. Every function queues its work on `stream` and does
/// not wait for it. Dtypes: f16, bf16, f32, f64; matrices are f32 or f64, all of one call equal.
/// Arrays do not overlap, except where a comment permits it. Called by one thread at a time.
class DeviceArithmetic {
 public:
  virtual ~DeviceArithmetic();
  /// to = from * factor, or to += from * factor; rounded to the dtype of `to`. Both have equally
  /// many elements, and may be the same array.
  virtual void scale(const ConstTensorView& from, double factor, const TensorView& to, bool add,
                     Stream stream) = 0;
  /// out = a b, where a and b are read as their transposes if the flags are set.
  virtual void multiply(const ConstTensorView& a, bool transpose_a, const ConstTensorView& b,
                        bool transpose_b, const TensorView& out, Stream stream) = 0;
  /// Makes the rows [k, n] orthonormal one by one (Gram-Schmidt). Divides by norm + epsilon. A row
  /// of which nothing remains becomes 0, and one that is not finite NaN. If the data of `refill`
  /// [k, n] is not null, such a row becomes that of `refill` instead, made orthonormal too.
  virtual void orthonormalize(const TensorView& rows, double epsilon, const ConstTensorView& refill,
                              Stream stream) = 0;
  /// m -= product; elements that are not finite then become 0.
  virtual void subtract(const TensorView& m, const ConstTensorView& product, Stream stream) = 0;
};

}  // namespace ddp
}  // namespace tutti
