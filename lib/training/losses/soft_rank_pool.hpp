#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/radix_sort.hpp"

namespace tutti::internal::losses {

/// The scores of a pool in ascending order, and its anchors.
struct SortedPool {
  /// Requires at most 2^31 scores, all finite.
  SortedPool(std::span<const double> in, std::span<const std::uint8_t> positive) {
    // Tries floats first, which take half the bytes.
    if (!sort_as<float>(in, positive)) sort_as<double>(in, positive);
  }

  Raw<double> scores;
  Raw<std::uint32_t> rows;               ///< Row of each score.
  std::vector<double> anchors;           ///< Positive scores.
  std::vector<std::uint32_t> anchor_at;  ///< Their indices in `scores`, ascending.

 private:
  /// Fills the members. Returns false and changes nothing if a score is not exact in Score.
  template <typename Score>
  bool sort_as(std::span<const double> in, std::span<const std::uint8_t> positive);
};

template <typename Score>
bool SortedPool::sort_as(std::span<const double> in, std::span<const std::uint8_t> positive) {
  struct Item {
    decltype(ordered_key(Score{})) key;
    std::uint32_t row;  // The highest bit marks a positive row. Not part of the sort's key.
  };
  constexpr std::uint32_t highest = std::uint32_t{1} << 31;
  Raw<Item> items(in.size());
  bool rounded = false;
  std::size_t count = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto score = static_cast<Score>(in[i]);
    rounded |= static_cast<double>(score) != in[i];
    const std::uint32_t is_positive = positive[i] != 0 ? 1 : 0;
    count += is_positive;
    // -0 + 0 is 0, so both zeros are the same score.
    items[i] = {ordered_key(score + Score{0}), static_cast<std::uint32_t>(i) | is_positive << 31};
  }
  if (rounded) return false;
  radix_sort(items, [](const Item& item) { return item.key; });
  scores.resize(items.size());
  rows.resize(items.size());
  anchor_at.resize(count + 1);  // One more than the anchors, so that the loop needs no branch.
  std::size_t next = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    scores[i] = static_cast<double>(score_of(items[i].key));
    rows[i] = items[i].row & ~highest;
    anchor_at[next] = static_cast<std::uint32_t>(i);
    next += items[i].row >> 31;
  }
  anchor_at.pop_back();
  anchors.resize(count);
  for (std::size_t k = 0; k < count; ++k) anchors[k] = scores[anchor_at[k]];
  return true;
}

/// Maps a row to its index in a list of rows, for sweeps over the sorted pool. Maps a row that is
/// not in the list to a number that is not below the list's length. Consecutive rows need no table.
class WantedRows {
 public:
  WantedRows(std::span<const std::uint32_t> rows, std::size_t pool) {
    if (rows.empty()) return;
    first_ = rows.front();
    std::size_t run = 1;
    while (run < rows.size() && rows[run] == first_ + run) ++run;
    if (run == rows.size()) return;
    table_.assign(pool, ~std::uint32_t{0});
    for (std::size_t i = 0; i < rows.size(); ++i) table_[rows[i]] = static_cast<std::uint32_t>(i);
  }
  std::uint32_t operator()(std::uint32_t row) const noexcept {
    return table_.empty() ? row - first_
                          : table_[row];  // Below first_ the difference wraps to a huge number.
  }

 private:
  std::uint32_t first_ = 0;
  std::vector<std::uint32_t> table_;
};

/// The sums A, B, D, E of an anchor, as in soft_rank.hpp.
struct SoftRankSums {
  double a = 1, b = 1, d = 0, e = 0;
};

/// The two sums of SoftRank::slopes() at a row.
struct SoftRankSlopes {
  double a = 0, b = 0;
};

}  // namespace tutti::internal::losses
