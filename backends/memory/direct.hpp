#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <fmt/format.h>

#include <tutti/backend/op.hpp>

#include "member.hpp"

namespace tutti::backend::memory {

/// A list with one entry per rank. Groups of up to 64 ranks need no allocation.
template <typename T>
using PerRank = fmt::basic_memory_buffer<T, 64>;

// The blocks of the ranks in an operation that has rows.

inline std::size_t row_bytes(const Op& op) noexcept {
  const bool by_out = op.kind == Operation::scatter || op.kind == Operation::reduce_scatter;
  return by_out ? op.out.row_bytes() : op.in.row_bytes();
}
inline std::size_t block_bytes(const Op& op, int rank) noexcept {
  return static_cast<std::size_t>(op.rows[rank]) * row_bytes(op);
}
inline std::size_t block_begin(const Op& op, int rank) noexcept {
  return static_cast<std::size_t>(op.rows.offset(rank)) * row_bytes(op);
}

/// The arrays of a rank that its peers may access during a call, in its entry.
struct EntryArrays {
  Location in;
  Location out;
  double scale = 0;         ///< Of premul_sum.
  std::uint64_t bytes = 0;  ///< The length of the input.
};
static_assert(sizeof(EntryArrays) == inline_bytes);

/// A collective whose ranks read and write each other's arrays. After all ranks have described
/// their arrays, each moves its part of the data, and then waits until all ranks have.
class Direct {
 public:
  enum class Way : std::uint8_t {
    none,   ///< They cannot.
    parts,  ///< Each rank moves a part of the data from and to the arrays of all.
    reads,  ///< Each rank reads what it needs. Some inputs are private.
  };

  /// True if an operation with arrays of these sizes gains. Equal on all ranks. `largest`: the
  /// bytes of the largest block of an all_to_all.
  static bool gains(const Op& op, const Member& member, std::size_t largest) noexcept;

  /// `in_entry`: the ranks describe their arrays in their entries; otherwise in a round. `reads`:
  /// private inputs may be read; not in a reduction.
  Direct(Member& member, const Op& op, bool in_entry, bool reads);

  bool in_entry() const noexcept { return in_entry_; }
  /// This rank's entry.
  std::span<const std::byte> entry() const noexcept { return std::as_bytes(std::span(&own(), 1)); }
  /// Describes the arrays in a round instead.
  void fill(std::uint64_t round);
  /// True if this rank names every array that its peers need.
  bool is_named() const noexcept { return names_all(member_.rank()); }
  /// After agree(): no rank does.
  bool none_is_named() const noexcept { return none_is_named_; }
  /// After the entry or in the round: how all ranks will access the arrays that they need.
  Way agree(std::uint64_t round);
  /// True if the system lets this rank read the private arrays of its peers. Reads a byte of each.
  bool can_read() const;
  /// Moves the data. False on all ranks if some could not read an input; the outputs are undefined
  /// then. @throws Error: the group is broken.
  bool run();
  /// After an error: returns when no peer accesses this rank's arrays any more. If a peer stopped
  /// while it did, nothing is allocated in their memory again.
  void withdraw() noexcept;

 private:
  EntryArrays& own() noexcept { return entries_[static_cast<std::size_t>(member_.rank())]; }
  const EntryArrays& own() const noexcept {
    return entries_[static_cast<std::size_t>(member_.rank())];
  }
  std::size_t in_bytes(int rank) const noexcept;
  std::size_t out_bytes(int rank) const noexcept;
  bool is_shared(const Location& location) const noexcept;
  bool is_complete(int rank) const noexcept;
  bool is_readable(int rank) const noexcept;
  bool names_all(int rank) const noexcept {
    return is_complete(rank) || (reads_ && is_readable(rank));
  }
  bool can_access_all();
  std::byte* locate(int rank, const Location& location, std::size_t bytes);
  template <typename Visit>
  void for_each_piece(const Visit& visit);
  void copy();
  bool read_blocks();
  bool read_block(int rank, std::size_t begin, std::size_t bytes, std::byte* to);
  void reduce();

  Member& member_;
  const Op& op_;
  const int size_;
  const bool in_entry_;
  const bool reads_;
  Way way_ = Way::none;
  bool none_is_named_ = true;
  PerRank<EntryArrays> entries_;
  PerRank<std::byte*> ins_;   // Null: not needed.
  PerRank<std::byte*> outs_;  // Null: not needed.
  PerRank<std::uint64_t>
      sent_;  // all_to_all: where in its input a rank's block for this one begins.
};

}  // namespace tutti::backend::memory
