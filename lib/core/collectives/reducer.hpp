#pragma once

#include <cstddef>
#include <span>

#include <tutti/backend/op.hpp>

#include "collectives/blocks.hpp"
#include "kernels/reduce.hpp"
#include "kernels/reproducible.hpp"

namespace tutti::collectives {

/// The arithmetic of one call.
class Reducer {
 public:
  Reducer(const Op& op, int size)
      : dtype_(op.in.dtype),
        reduce_(op.reduce),
        kind_(op.reduce.kind),
        reproducible_(op.reproducible),
        size_(index(size)),
        element_(size_of(op.in.dtype)),
        fn_(internal::reduce_fn(dtype_, sums() ? ReduceOp::Kind::sum : kind_)) {}

  bool scaled() const { return kind_ == ReduceOp::Kind::premul_sum; }
  double scale() const { return reduce_.scale; }
  /// Writes this rank's contribution to a reduction: premul_sum scales it, and booleans become 0 or
  /// 1.
  void prepare(void* out, const void* in, std::size_t bytes) const {
    if (!scaled() && dtype_ != DType::boolean) return copy_bytes(out, in, bytes);
    const void* inputs[] = {in};
    fold(out, inputs, {&reduce_.scale, 1}, bytes);
  }
  void combine(void* out, const void* a, const void* b, std::size_t bytes) const {
    if (fn_ != nullptr) return fn_(out, a, b, bytes / element_);
    const void* const inputs[] = {a, b};
    internal::fold_custom(dtype_, reduce_, out, inputs, bytes / element_);
  }
  void finish(void* data, std::size_t bytes) const {
    if (kind_ == ReduceOp::Kind::avg) internal::divide(dtype_, data, bytes / element_, size_);
  }
  /// The left fold, rounded once, or the reproducible sum. `scales`: one per input if scaled(),
  /// otherwise ignored.
  void fold(void* out, std::span<const void* const> inputs, std::span<const double> scales,
            std::size_t bytes) const {
    if (is_custom()) return internal::fold_custom(dtype_, reduce_, out, inputs, bytes / element_);
    const auto fold = reproducible_ ? internal::fold_reproducible : internal::fold;
    fold(dtype_, kind_, out, inputs, scaled() ? scales : std::span<const double>(),
         bytes / element_);
  }
  /// Writes rank 0's result of exclusive_scan. Custom reductions have no known identity: no effect.
  void identity(void* out, std::size_t bytes) const {
    if (is_custom()) return;
    internal::fill_identity(dtype_, kind_, out, bytes / element_);
  }

 private:
  bool is_custom() const { return kind_ == ReduceOp::Kind::custom; }
  bool sums() const { return kind_ == ReduceOp::Kind::avg || scaled(); }

  DType dtype_;
  ReduceOp reduce_;
  ReduceOp::Kind kind_;
  bool reproducible_;
  std::size_t size_;
  std::size_t element_;
  internal::ReduceFn fn_;  // Null: custom.
};

}  // namespace tutti::collectives
