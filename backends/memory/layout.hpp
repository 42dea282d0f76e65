#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "backend/record.hpp"

// The shared memory of a group. Every word has one writer, except those of SharedGroup and of
// slots, and the words `bell`. A fresh file is zero, so every number begins at 0.
//
// Memory order. A rank writes data, then stores a number; a peer loads the number, then reads the
// data: release and acquire. Between a store after which a sleeping peer has to be woken and the
// look for sleepers is a sequentially consistent fence, and the loads by which a peer decides to
// sleep are sequentially consistent (see Member::notify()).

namespace tutti::backend::memory {

using Number = std::atomic<std::uint64_t>;
using Word = std::atomic<std::uint32_t>;
static_assert(Number::is_always_lock_free && Word::is_always_lock_free,
              "processes cannot share a lock that the library would use instead");

constexpr std::size_t cache_line = 64;
constexpr std::size_t inline_bytes = 48;

constexpr std::size_t whole_lines(std::size_t bytes) noexcept {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

/// The entry of a rank to a call, in one cache line. The line beside it is empty, because a core
/// that reads a line may fetch the line beside it too.
struct alignas(2 * cache_line) Entry {
  Number call;  ///< The number of the call + 1; stored last.
  std::uint64_t fingerprint;
  std::array<std::byte, inline_bytes> data;  ///< A small array.
};
static_assert(offsetof(Entry, data) + inline_bytes == cache_line);

/// A word on which one rank sleeps.
struct alignas(cache_line) Bell {
  Word bell;    ///< Counts wake-ups.
  Word sleeps;  ///< Not 0: the rank sleeps, or is about to. Collectives: rank waited for, + 1.
};

/// The beginning of a slot.
struct alignas(cache_line) SlotPrefix {
  double scale;  ///< Of premul_sum.
  /// The length of the rank's block, where only that rank knows it. Atomic, so that it is read once
  /// and cannot change between the check and the use; relaxed, as it is filled with the slot.
  Number bytes;
};

/// The reason for which a rank breaks the group.
struct SharedCause {
  Number bytes;                   ///< Read once. Relaxed: published with `record`.
  std::array<char, 2040> record;  ///< Of encode_error().
};

/// The words of one rank. A peer polls some of them while the rank writes others.
struct SharedRank {
  std::array<Entry, 2> entries;            ///< By call number.
  alignas(cache_line) Number filled;       ///< Rounds whose slot is filled.
  alignas(cache_line) Number folded;       ///< Rounds whose slice of the result is complete.
  alignas(cache_line) Number taken;        ///< Rounds of which this rank needs nothing any more.
  alignas(cache_line) Number moved;        ///< Direct collectives whose data this rank has moved.
  alignas(cache_line) Number agreed;       ///< Odd agreements of Member::agree() and their bits.
  alignas(cache_line) Number agreed_even;  ///< Even ones.
  alignas(cache_line) Number left;         ///< The last entered call that this rank has left, + 1.
  alignas(cache_line) Number described;    ///< The call that `record` describes, + 1.
  Word gone;                               ///< 1: the rank has left the group.
  Word accesses;                           ///< 1: the rank may access its peers' arrays.
  Word joined;                             ///< 1: the rank has mapped the segment.
  internal::Record record;  ///< This rank's call, written when the ranks' calls differ.
  SharedCause cause;        ///< Written before the rank sets SharedGroup::broken.
  Bell collectives;
  Bell messages;
};

struct SharedGroup {
  alignas(cache_line) Word sleepers;  ///< Ranks that sleep in a collective.
  alignas(cache_line) Word broken;    ///< The rank that broke the group first, + 1.
  alignas(cache_line) Word refusals;  ///< Counts refused calls.
  /// The number of ranks that have joined; given_up added by ranks that do not wait for the others.
  alignas(cache_line) Word joined;
};
constexpr std::uint32_t given_up = std::uint32_t{1} << 31;

/// Frames from one rank to another. Both numbers count bytes.
struct SharedRing {
  alignas(cache_line) Number head;  ///< Written by the sender.
  alignas(cache_line) Number tail;  ///< Written by the receiver.
};

/// The offsets in the segment of a group of `size` ranks.
class Layout {
 public:
  static constexpr std::uint32_t version = 8;
  static constexpr std::size_t slots = 4;  ///< Of each rank.
  static constexpr std::size_t slot_prefix = sizeof(SlotPrefix);

  explicit constexpr Layout(int size) noexcept
      : size_(static_cast<std::size_t>(size)),
        slot_bytes_(std::max(std::clamp(std::bit_floor(slot_budget / size_), std::size_t{64} << 10,
                                        std::size_t{256} << 10),
                             size_ * cache_line)),
        ring_bytes_(std::clamp(std::bit_floor(ring_budget / (size_ * size_)), std::size_t{4} << 10,
                               std::size_t{256} << 10)) {}

  std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  std::size_t ring_bytes() const noexcept { return ring_bytes_; }

  std::size_t rank(std::size_t r) const noexcept {
    return whole_lines(sizeof(SharedGroup)) + r * whole_lines(sizeof(SharedRank));
  }
  /// The data of slot `s` of rank r, or of its peer (Member::slot()).
  std::size_t slot(std::size_t r, std::size_t s) const noexcept {
    return rank(size_) + (r * slots + s) * (slot_prefix + slot_bytes_) + slot_prefix;
  }
  std::size_t ring(std::size_t from, std::size_t to) const noexcept {
    return slot(size_, 0) - slot_prefix + (from * size_ + to) * (sizeof(SharedRing) + ring_bytes_);
  }
  /// Without rings.
  std::size_t bytes_of_calls() const noexcept { return ring(0, 0); }
  std::size_t bytes() const noexcept { return (ring(size_, 0) + 4095) / 4096 * 4096; }

 private:
  // Of a whole segment, apart from minimum sizes.
  static constexpr std::size_t slot_budget = std::size_t{2} << 20;
  static constexpr std::size_t ring_budget = std::size_t{4} << 20;

  std::size_t size_;
  std::size_t slot_bytes_;
  std::size_t ring_bytes_;
};

}  // namespace tutti::backend::memory
