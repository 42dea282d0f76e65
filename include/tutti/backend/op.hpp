#pragma once

#include <cstdint>

#include <tutti/operation.hpp>
#include <tutti/reduce_op.hpp>
#include <tutti/rows.hpp>
#include <tutti/tensor.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// One operation, checked. `in` and `out` may be the same memory (in place); broadcast has the
/// same array in both. Arrays that mean nothing on this rank are empty.
struct Op {
  Operation kind = Operation::barrier;
  ConstTensorView in{};
  TensorView out{};
  /// all_gather, reduce_scatter, gather, scatter; recv rows of all_to_all. all_gather_bounded: the
  /// most that a rank may have; what it has is in `in`, and only its own rank knows it.
  Rows rows{};
  Rows send_rows{};  ///< all_to_all.
  ReduceOp reduce{};
  int root = -1;
  int peer = -1;
  int tag = 0;
  std::uint64_t seq = 0;          ///< send, recv: its number for this ordered pair and tag.
  std::uint64_t fingerprint = 0;  ///< send, recv: equal on both sides or the program is wrong.
};

}  // namespace tutti
