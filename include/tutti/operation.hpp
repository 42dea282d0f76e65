#pragma once

#include <cstdint>
#include <string_view>

#include <tutti/reduce_op.hpp>
#include <tutti/rows.hpp>
#include <tutti/tensor.hpp>

namespace [[gnu::visibility("default")]] tutti {

enum class Operation : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  /// Not a verb. A gather in which each rank knows its own row count alone; backends that have it
  /// report it through Backend::supports(). in [n_r, ...], n_r <= B, with B equal on all ranks; out
  /// [W * B, ...]: rows of rank r begin at row r * B, and elements after them are not written. The
  /// received n_r is not reported.
  all_gather_bounded,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  scan,
  exclusive_scan,
  barrier,
  send,
  recv
};
inline constexpr int operation_count = static_cast<int>(Operation::recv) + 1;

std::string_view name_of(Operation operation) noexcept;
constexpr bool is_point_to_point(Operation o) noexcept {
  return o >= Operation::send;
}

/// One operation with checked arguments. `in` and `out` may be the same memory (in place); for
/// broadcast they are the same array. Arrays that this rank does not use are empty.
struct Op {
  Operation kind = Operation::barrier;
  ConstTensorView in{};
  TensorView out{};
  /// all_gather, reduce_scatter, gather, scatter: rows per rank; all_to_all: rows to receive.
  /// all_gather_bounded: the bound B; this rank's own count is that of `in`.
  Rows rows{};
  Rows send_rows{};  ///< all_to_all: rows to send.
  ReduceOp reduce{};
  int root = -1;
  int peer = -1;
  int tag = 0;
  std::uint64_t seq = 0;          ///< send, recv: number in this ordered pair and tag.
  std::uint64_t fingerprint = 0;  ///< send, recv: equal on both sides or the program is wrong.
};

}  // namespace tutti
