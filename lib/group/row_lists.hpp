#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/backend/backend.hpp>

namespace tutti::internal {

/// Room for the lists of rows of all `ops`, before the first copy_row_lists().
template <typename Ops, typename Allocator>
void reserve_row_lists(const Ops& ops, std::vector<std::int64_t, Allocator>& kept) {
  std::size_t listed = 0;
  for (const Op& op : ops) listed += op.rows.list().size() + op.send_rows.list().size();
  kept.reserve(listed);
}

/// Copies the lists of rows of `op`, whose owner may go away, and lets it point to the copy.
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
