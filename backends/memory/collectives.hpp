#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <tutti/backend/op.hpp>

#include "backend/fingerprint.hpp"
#include "collectives/reducer.hpp"
#include "direct.hpp"
#include "member.hpp"

// Every reduction is the left fold over ranks 0..W-1 in the accumulation type, rounded once.

namespace tutti::backend::memory {

inline const std::byte* bytes_of(const ConstTensorView& view) {
  return static_cast<const std::byte*>(view.data);
}
inline std::byte* bytes_of(const TensorView& view) {
  return static_cast<std::byte*>(view.data);
}

/// One collective of a call. Its data moves in rounds: in each, a rank fills its slot, and takes
/// from the slots of others what it needs.
class Collective {
 public:
  /// `in_entry`: a small array may be in the entry. `largest_rows`: of an all_to_all (RowCounts).
  /// `reads`: private inputs of other processes are read, or all data goes through slots; nothing:
  /// as the member's ReadChoice says.
  Collective(Member& member, const Op& op, bool in_entry, std::int64_t largest_rows,
             std::optional<bool> reads = {});

  /// begin(), the entry unless all ranks have entered the call, prepare() and run(). After an error
  /// no peer accesses the arrays of this rank. @throws Error of Member.
  void run_whole(bool entered);

 private:
  enum class Way : std::uint8_t {
    entry,   ///< The data is in the entries, or there is one rank.
    rounds,  ///< Every rank takes what it needs.
    slices,  ///< Rank r folds slice r of each round, and others take the results.
  };
  struct Part {
    std::size_t from;
    std::size_t bytes;
  };

  /// The array for the entry; empty if the data needs rounds.
  std::span<const std::byte> small() const noexcept;
  /// Fills what this rank can fill before it enters the call.
  void begin();
  /// Prepares run(), without data of the peers.
  void prepare() {
    if (internal::is_reduction(op_.kind)) reducer_.emplace(op_, size_);
  }
  /// True if all ranks fill round 0 before they enter the call.
  bool all_fill_first() const noexcept { return has_rounds() && !(direct_ && direct_->in_entry()); }
  /// Moves the rest of the data. All ranks have entered the call.
  void run();
  bool has_rounds() const noexcept { return way_ != Way::entry; }
  bool from_root() const noexcept {
    return op_.kind == Operation::broadcast || op_.kind == Operation::scatter;
  }
  /// True if this rank fills round 0 of the data before the entry: its peers cannot access its
  /// arrays.
  bool fills_first() const noexcept {
    return !skips_ && (!direct_ || (direct_->in_entry() && !direct_->is_named()));
  }
  void fill(std::size_t round);
  void fill_after_entry();
  bool run_direct();
  // The decision to read private arrays (calibration.cpp).
  void permit_reads();
  void decide_reads();
  void choose(bool in_entry, std::size_t largest_rows);
  void choose_reduction(std::size_t bytes, bool in_entry);
  /// In rounds of at least `least` bytes.
  void divide(std::size_t bytes, std::size_t least);
  /// In rounds of one part of each block; a slot holds a part for each rank.
  void divide_blocks(std::size_t largest);
  Part part(std::size_t bytes, std::size_t round) const noexcept;
  std::size_t place_of_block(int from, int to) const noexcept;
  std::size_t largest_block() const noexcept;
  std::size_t all_blocks() const noexcept { return block_begin(op_, size_); }

  const std::byte* source(int rank, std::size_t round);
  void take(std::size_t round);
  void take_reduced(std::size_t round);
  void take_scanned(std::size_t round);
  void take_own_block_reduced(std::size_t round);
  void take_gathered(std::size_t round);
  void take_from_root(std::size_t round);
  void take_scattered(std::size_t round);
  void take_exchanged(std::size_t round);
  void fill_blocks(std::size_t round, const Rows& rows);
  void fold(std::byte* out, const std::byte* own, std::size_t round, std::size_t offset,
            std::size_t bytes, int ranks);
  void run_rounds();

  // Slices (slices.cpp).
  void fill_other_slices(std::size_t round);
  void run_slices();
  std::byte* folded_slice(int rank, std::size_t round) const noexcept;
  void fold_slice(std::size_t round);
  void take_slices(std::size_t round);

  Member& member_;
  const Op& op_;
  const int rank_;
  const int size_;
  const std::optional<bool> reads_;
  std::size_t block_ = 0;  // The bytes of the largest block that a rank reads.
  Way way_ = Way::entry;
  std::uint64_t base_;  // The number of round 0.
  /// Its first round is a later one, whose slots are its root's to write
  /// (Member::first_round_of()).
  bool skips_ = false;
  std::size_t rounds_ = 1;
  std::optional<Direct> direct_;  // Tried first.
  std::optional<collectives::Reducer> reducer_;
  std::size_t piece_ = 0;  // The bytes of an array or of each block that move in a round.
  bool blocks_ = false;    // A slot has a block for each other rank.
};

/// Runs the collectives of a call. @throws Error.
void run_collectives(Member& member, std::span<const Op> ops, const Call& call);

}  // namespace tutti::backend::memory
