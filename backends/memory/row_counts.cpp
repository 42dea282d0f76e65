#include "row_counts.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace tutti::backend::memory {
namespace {

std::size_t bytes_of_counts(std::size_t ranks) noexcept {
  return 2 * ranks * sizeof(std::int64_t);  // Sent rows, then expected rows.
}

}  // namespace

RowCounts::RowCounts(Member& member, std::span<const Op> ops)
    : member_(member),
      ranks_(static_cast<std::size_t>(member.size())),
      base_(member.position()),
      per_round_(member.layout().slot_bytes() / bytes_of_counts(ranks_)) {
  for (const auto& op : ops)
    if (op.kind == Operation::all_to_all) ops_.push_back({&op, 0});
}

std::span<RowCounts::Exchange> RowCounts::ops_of(std::size_t round) noexcept {
  const auto first = std::min(round * per_round_, ops_.size());
  return {ops_.data() + first, std::min(per_round_, ops_.size() - first)};
}

std::int64_t RowCounts::largest(const Op& op) const noexcept {
  return std::ranges::find(ops_, &op, &Exchange::op)->largest;
}

void RowCounts::fill(std::size_t round) {
  member_.await_free(base_ + round);
  auto* to = member_.slot(member_.rank(), base_ + round);
  for (const auto& [op, largest] : ops_of(round))
    for (const Rows* rows : {&op->send_rows, &op->rows})
      for (std::size_t r = 0; r < ranks_; ++r, to += sizeof(std::int64_t)) {
        const std::int64_t count = (*rows)[static_cast<int>(r)];
        std::memcpy(to, &count, sizeof count);
      }
  member_.filled(base_ + round);
}

void RowCounts::compare() {
  fmt::basic_memory_buffer<std::int64_t, 64> counts;  // Of one operation, by rank.
  counts.resize(ranks_ * 2 * ranks_);
  const auto count = [&](int rank, std::size_t index) {
    return counts[2 * ranks_ * static_cast<std::size_t>(rank) + index];
  };
  std::optional<Error> differs;
  const auto rounds = (ops_.size() + per_round_ - 1) / per_round_;
  for (std::size_t k = 0; k < rounds; ++k) {
    if (k + 1 < rounds) fill(k + 1);
    for (int r = 0; r < member_.size(); ++r)
      if (r != member_.rank()) member_.await_filled(r, base_ + k);
    std::size_t offset = 0;
    for (auto& exchange : ops_of(k)) {
      // Copied once, so that a peer cannot change them between the checks and the use.
      for (std::size_t r = 0; r < ranks_; ++r)
        std::memcpy(&counts[2 * ranks_ * r], member_.slot(static_cast<int>(r), base_ + k) + offset,
                    bytes_of_counts(ranks_));
      offset += bytes_of_counts(ranks_);
      if (!differs)
        differs = member_.compare_rows(
            [&](int from, int to) { return count(from, static_cast<std::size_t>(to)); },
            [&](int from, int to) { return count(to, ranks_ + static_cast<std::size_t>(from)); });
      const auto row_bytes = static_cast<std::int64_t>(exchange.op->in.row_bytes());
      const auto most =
          std::numeric_limits<std::int64_t>::max() / std::max<std::int64_t>(1, row_bytes);
      for (int from = 0; from < member_.size(); ++from)
        for (std::size_t to = 0; to < ranks_; ++to) {
          if (count(from, to) < 0 || count(from, to) > most)
            member_.fail_corrupt(from, "a row count");
          exchange.largest = std::max(exchange.largest, count(from, to));
        }
    }
    member_.taken(base_ + k);
  }
  member_.advance(rounds);
  // Not before: the next call's rounds have the numbers from here on, on all ranks.
  if (differs) member_.end_with(*differs);
}

}  // namespace tutti::backend::memory
