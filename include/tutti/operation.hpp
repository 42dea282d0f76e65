#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include <tutti/format.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The operations of calls. Two are not verbs of ProcessGroup: all_gather_bounded and recv_any.
enum class Operation : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  /// Not a verb of ProcessGroup. A gather in which each rank knows only its own row count; a
  /// backend reports it through Backend::supports(). in [n_r, ...], n_r <= B, with B equal on all
  /// ranks; out [W * B, ...]: rows of rank r begin at row r * B, and elements after them are not
  /// written. The received n_r is not reported.
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
  recv_any  ///< Argument of supports() only: recv with any_peer. The kind of its Op is recv.
};
/// The number of kinds that an Op can have: all but recv_any, the last.
inline constexpr int operation_count = static_cast<int>(Operation::recv) + 1;

/// The peer of a recv from any rank: takes a send to this rank and tag, of each sender the oldest.
/// Error unsupported unless supports(Operation::recv_any). Not -1, because `rank - 1` on rank 0
/// must stay an error.
inline constexpr int any_peer = std::numeric_limits<int>::min();

/// "all_reduce", ...
std::string_view name_of(Operation operation) noexcept;
/// True for send, recv and recv_any.
constexpr bool is_point_to_point(Operation o) noexcept {
  return o >= Operation::send;
}

}  // namespace tutti
