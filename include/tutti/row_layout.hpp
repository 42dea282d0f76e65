#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The row count of each rank, the same on every rank. A value type.
class RowLayout {
 public:
  RowLayout() = default;  ///< Of zero ranks. Does not throw.
  /// @throws Error invalid_argument for a negative count, count_overflow when the rows together
  ///         do not fit in 63 bits.
  explicit RowLayout(std::span<const std::int64_t> counts);
  explicit RowLayout(const std::vector<std::int64_t>& counts)
      : RowLayout(std::span<const std::int64_t>(counts)) {}
  /// The same count for every rank. @throws as the constructor.
  static RowLayout equal(int ranks, std::int64_t rows_of_each);

  int ranks() const noexcept { return static_cast<int>(counts_.size()); }  ///< The number of ranks.
  std::span<const std::int64_t> counts() const noexcept { return counts_; }  ///< By rank.
  std::int64_t operator[](int rank) const noexcept {
    return counts_[static_cast<std::size_t>(rank)];
  }
  /// Index of rank's first row in the gathered array; offset(ranks()) is the total.
  std::int64_t offset(int rank) const noexcept {
    return rank == 0 ? 0 : ends_[static_cast<std::size_t>(rank) - 1];
  }
  std::int64_t total() const noexcept { return ends_.empty() ? 0 : ends_.back(); }  ///< The sum.
  std::int64_t max() const noexcept { return max_; }  ///< The largest count; 0 without ranks.
  bool is_equal() const noexcept;                     ///< All counts are equal.

  /// Converts for the verbs of ProcessGroup.
  operator Rows() const& noexcept { return Rows(counts()); }
  operator Rows() && = delete;
  friend bool operator==(const RowLayout& a, const RowLayout& b) noexcept {
    return a.counts_ == b.counts_;
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> ends_;  // By rank, the sum of the counts up to its own.
  std::int64_t max_ = 0;
};

/// "{3, 0, 5}"; abbreviated for more than eight ranks.
std::string to_string(const RowLayout& rows);

/// Exchanges the ranks' row counts. On the wire: 8 bytes to each peer. A negative count is an Error
/// invalid_argument on every rank, and the group stays usable.
RowLayout exchange_rows(ProcessGroup& group, std::int64_t rows, const CallOptions& options = {});

}  // namespace tutti
