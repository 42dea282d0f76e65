#pragma once

#include <cstdint>

#include <tutti/operation.hpp>
#include <tutti/reduce_op.hpp>
#include <tutti/rows.hpp>
#include <tutti/tensor.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// One operation with checked arguments. `in` and `out` may be the same memory (in place); for
/// broadcast they are the same array. Arrays that this rank does not use are empty.
struct Op {
  Operation kind = Operation::barrier;  ///< Never recv_any.
  ConstTensorView in{};                 ///< Read. Shapes: see the verb in ProcessGroup.
  TensorView out{};                     ///< Written.
  /// all_gather, reduce_scatter, gather, scatter: rows per rank; all_to_all: rows to receive.
  /// all_gather_bounded: the bound B; this rank's own count is the number of rows of `in`.
  Rows rows{};
  Rows send_rows{};   ///< all_to_all: rows to send.
  ReduceOp reduce{};  ///< Of operations that reduce.
  /// CallOptions::reproducible of operations that reduce. Only if Backend::reproduces().
  bool reproducible = false;
  int root = -1;  ///< broadcast, reduce, gather, scatter.
  int peer = -1;  ///< send, recv. recv: any_peer only if supports(Operation::recv_any).
  int tag = 0;    ///< send, recv: >= 0; -1 if they replace a collective.
  /// recv: receives the sender's rank before the call ends without an error. May be null.
  int* source = nullptr;
  /// send, recv: number, counted per (sender, receiver, tag). A recv from any_peer is counted among
  /// the receives from any_peer with its tag; a backend that supports it matches messages in the
  /// order of the calls.
  std::uint64_t seq = 0;
  /// send, recv: if the sides differ, the backend reports a mismatch.
  std::uint64_t fingerprint = 0;
};

}  // namespace tutti
