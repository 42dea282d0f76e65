#pragma once

#include <cstddef>

#include <tutti/backend/backend.hpp>

#include "cuda/fold_kernels.hpp"
#include "op_context.hpp"

namespace tutti::backend::nccl {

/// A reduction or scan that NCCL cannot compute as ReduceOp defines it. Every rank receives its
/// slice of every rank's array, folds the slices in rank order with a kernel of the library, and
/// sends the result to the ranks that need it. Call groups(), before(), inside() and after() as for
/// Lowering (ops.hpp).
class Folding {
 public:
  /// OpContext::kernels must not be null.
  Folding(const OpContext& context, const Op& op);

  int groups() const noexcept { return op_.kind == Operation::reduce_scatter ? 1 : 2; }
  void before(int group);
  void inside(int group, ncclComm_t comm);
  void after();

 private:
  /// A range of bytes: the elements that a rank folds.
  struct Slice {
    std::size_t begin;
    std::size_t bytes;
  };
  Slice slice(int rank) const noexcept;
  bool scaled() const noexcept { return op_.reduce.kind == ReduceOp::Kind::premul_sum; }
  bool scans() const noexcept {
    return op_.kind == Operation::scan || op_.kind == Operation::exclusive_scan;
  }
  std::byte* slot(int rank) const noexcept {
    return scratch_.data() + static_cast<std::size_t>(rank) * slot_bytes_;
  }
  double* scale(int rank) const noexcept {
    return reinterpret_cast<double*>(slot(context_.size)) + rank;
  }
  const std::byte* in() const noexcept { return static_cast<const std::byte*>(op_.in.data); }
  std::byte* out() const noexcept { return static_cast<std::byte*>(op_.out.data); }
  /// True when the result is gathered without scratch memory: the slots are the whole result,
  /// without padding.
  bool is_whole() const noexcept {
    return slot_bytes_ * static_cast<std::size_t>(context_.size) == op_.in.bytes();
  }
  void fold();

  OpContext context_;
  Op op_;
  Slice mine_;
  std::size_t slot_bytes_;
  // One slot per rank; with premul_sum also one scale per rank, after the slots.
  Scratch scratch_;
};

}  // namespace tutti::backend::nccl
