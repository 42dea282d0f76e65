#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/backend/backend.hpp>

namespace tutti::internal {

/// Reserves memory in `kept` for the row lists of all `ops`, because copy_row_lists() must not move
/// earlier copies.
template <typename Ops, typename Allocator>
void reserve_row_lists(const Ops& ops, std::vector<std::int64_t, Allocator>& kept) {
  std::size_t listed = 0;
  for (const Op& op : ops) listed += op.rows.list().size() + op.send_rows.list().size();
  kept.reserve(listed);
}

/// Appends the row lists of `op` to `kept` and makes `op` refer to the copies.
template <typename Allocator>
void copy_row_lists(Op& op, std::vector<std::int64_t, Allocator>& kept) {
  for (Rows* rows : {&op.rows, &op.send_rows}) {
    if (!rows->listed()) continue;
    const auto from = kept.size();
    kept.insert(kept.end(), rows->list().begin(), rows->list().end());
    *rows = Rows(std::span<const std::int64_t>(kept).subspan(from));
  }
}

}  // namespace tutti::internal
