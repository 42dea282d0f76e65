#pragma once

#include <cstdint>
#include <string_view>

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

}  // namespace tutti
