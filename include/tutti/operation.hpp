#pragma once

#include <cstdint>
#include <limits>
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
  /// Not a verb: backends that can gather rows whose number only their own rank knows say so by
  /// Backend::supports(). in [n_r, ...], n_r <= B, equal on all ranks; out [W * B, ...]: those of
  /// rank r begin at row r * B, what follows them is left as it is. The received n_r is not
  /// reported.
  all_gather_bounded,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  scan,
  exclusive_scan,
  barrier,
  send,
  recv,
  recv_any  ///< Asked of supports() alone: recv with any_peer. The kind of such an Op is recv.
};
/// The kinds of Op.
inline constexpr int operation_count = static_cast<int>(Operation::recv) + 1;

/// The peer of a recv from any rank: takes the oldest send to this rank and tag. `unsupported`
/// unless supports(Operation::recv_any). Not -1, which is rank - 1 on rank 0.
inline constexpr int any_peer = std::numeric_limits<int>::min();

std::string_view name_of(Operation operation) noexcept;
constexpr bool is_point_to_point(Operation o) noexcept {
  return o >= Operation::send;
}

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
  int peer = -1;  ///< send, recv. any_peer only where supports(recv_any).
  int tag = 0;
  /// recv: receives the sender's rank before the call ends without an error. May be null.
  int* source = nullptr;
  /// send, recv: its number for this ordered pair and tag. A recv from any_peer has a count of its
  /// own per tag; a backend that supports it matches messages in the order of the calls.
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;  ///< send, recv: equal on both sides or the program is wrong.
};

}  // namespace tutti
