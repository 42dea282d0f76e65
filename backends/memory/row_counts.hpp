#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <fmt/format.h>

#include <tutti/backend/op.hpp>

#include "member.hpp"

namespace tutti::backend::memory {

/// The row counts of all all_to_all operations of a call. Fingerprints leave them out, so the ranks
/// exchange them in rounds of their own, before any data of the call moves.
class RowCounts {
 public:
  RowCounts(Member& member, std::span<const Op> ops);

  /// True if the call has no all_to_all.
  bool empty() const noexcept { return ops_.size() == 0; }
  /// Fills this rank's slot. Round 0 has to be filled before the entry.
  void fill(std::size_t round);
  /// Compares the counts of all ranks, which have entered the call. @throws Error mismatch on all
  /// ranks if they differ; the errors of Member.
  void compare();
  /// The most rows that a rank sends to another in this all_to_all of the call.
  std::int64_t largest(const Op& op) const noexcept;

 private:
  struct Exchange {
    const Op* op;
    std::int64_t largest;
  };

  std::span<Exchange> ops_of(std::size_t round) noexcept;

  Member& member_;
  const std::size_t ranks_;
  const std::uint64_t base_;                      // The number of round 0.
  const std::size_t per_round_;                   // Operations whose counts fit in a slot.
  fmt::basic_memory_buffer<Exchange, 16> ops_{};  // Without an allocation for so many.
};

}  // namespace tutti::backend::memory
