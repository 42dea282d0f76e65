#pragma once

#include <cstdint>
#include <vector>

#include <tutti/process_group.hpp>

#include "bench/cell.hpp"

// Messages between pairs of ranks, all pairs at once: rank i and rank i + W/2, as in osu_mbw_mr.
// The lower rank begins.

namespace tutti::tool {

/// The other rank of the pair.
int partner(const Cell& cell) noexcept;
inline bool begins(const Cell& cell) noexcept {
  return cell.rank < partner(cell);
}
/// The number of messages in flight: 64 up to 65,536 elements, fewer above, at least 2.
std::int64_t window(const Cell& cell) noexcept;

/// The contents of an array of a window.
std::vector<Piece> window_of_partner(const Cell& cell);
/// The same, or on the rank that sends the window its own first element: the acknowledgement.
std::vector<Piece> window_or_acknowledgement(const Cell& cell);

// The calls.
void ping_pong(ProcessGroup& group, const Arrays& arrays, const How& how);
void send_window(ProcessGroup& group, const Arrays& arrays, const How& how);
void exchange_windows(ProcessGroup& group, const Arrays& arrays, const How& how);

}  // namespace tutti::tool
