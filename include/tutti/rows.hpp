#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace [[gnu::visibility("default")]] tutti {

/// The row counts of the ranks in a gather-like call: one number for all, or a list with one entry
/// per rank. Borrows the list until the call returns (async calls copy it).
///
/// Default-made: the same number for all ranks, derived from the call's arrays.
class Rows {
 public:
  constexpr Rows() noexcept = default;
  constexpr Rows(std::int64_t each) noexcept : each_(each) {}
  constexpr Rows(std::span<const std::int64_t> per_rank) noexcept
      : per_rank_(per_rank), each_(in_list) {}
  Rows(const std::vector<std::int64_t>& per_rank) noexcept
      : Rows(std::span<const std::int64_t>(per_rank)) {}
  constexpr Rows(std::initializer_list<std::int64_t> per_rank) noexcept
      : Rows(std::span(per_rank.begin(), per_rank.size())) {}

  constexpr bool listed() const noexcept { return each_ == in_list; }   ///< A list, not one number.
  constexpr bool given() const noexcept { return each_ != not_given; }  ///< False if default-made.
  /// The counts by rank; empty unless listed().
  constexpr std::span<const std::int64_t> list() const noexcept { return per_rank_; }

  constexpr std::int64_t operator[](int rank) const noexcept {
    return listed() ? per_rank_[static_cast<std::size_t>(rank)] : each_;
  }
  /// Rows of the ranks before `rank`; offset(size) is the total. The call has checked that the
  /// total fits in 63 bits.
  constexpr std::int64_t offset(int rank) const noexcept {
    if (!listed()) return each_ * rank;
    std::int64_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += (*this)[r];
    return sum;
  }

 private:
  static constexpr std::int64_t not_given = INT64_MIN;
  static constexpr std::int64_t in_list = INT64_MIN + 1;
  std::span<const std::int64_t> per_rank_{};
  std::int64_t each_ = not_given;
};

}  // namespace tutti
