#include "collectives.hpp"

#include <algorithm>

#include "collectives/blocks.hpp"
#include "thresholds.hpp"

// The slices of a collective: rank r folds slice r of each round, and the others take the result.

namespace tutti::backend::memory {

using collectives::copy_bytes;
using collectives::cut;

void Collective::fill_other_slices(std::size_t round) {
  const auto array = part(op_.in.bytes(), round);
  const auto parts = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  const auto begin = cut(array.bytes, parts, me);
  const auto end = cut(array.bytes, parts, me + 1);
  auto* const slot = member_.slot(rank_, base_ + round);
  const auto* const in = bytes_of(op_.in) + array.from;
  copy_bytes(slot, in, begin);
  copy_bytes(slot + end, in + end, array.bytes - end);
}

void Collective::run_slices() {
  for (std::size_t k = 0; k < rounds_; ++k) {
    if (k + 1 < rounds_) fill(k + 1);
    fold_slice(k);
    if (k > 0) take_slices(k - 1);
  }
  take_slices(rounds_ - 1);
}

/// The slot in which slice `rank` of the result lies at its offset. The result of an all_reduce
/// replaces the input of the next rank, which only `rank` reads: a core writes faster to lines that
/// it has read last than to others. On two ranks the next rank also fills these lines again, after
/// it has read the result there.
std::byte* Collective::folded_slice(int rank, std::size_t round) const noexcept {
  const int owner = op_.kind == Operation::all_reduce ? (rank + 1) % size_ : rank;
  return member_.slot(owner, base_ + round);
}

/// Folds this rank's slice of the round, and publishes it.
void Collective::fold_slice(std::size_t round) {
  const auto array = part(op_.in.bytes(), round);
  const auto parts = static_cast<std::size_t>(size_);
  const auto begin = cut(array.bytes, parts, static_cast<std::size_t>(rank_));
  const auto end = cut(array.bytes, parts, static_cast<std::size_t>(rank_) + 1);
  const auto* const in = bytes_of(op_.in) + array.from;
  auto* const slice = folded_slice(rank_, round) + begin;
  const bool keeps = op_.kind == Operation::all_reduce || rank_ == op_.root;
  const bool publishes = op_.kind == Operation::all_reduce || rank_ != op_.root;
  // In blocks, so that the copy finds the result in the cache.
  for (auto at = begin; at < end; at += fold_block) {
    const auto n = std::min(fold_block, end - at);
    auto* const shared = slice + (at - begin);
    auto* const out = keeps ? bytes_of(op_.out) + array.from + at : shared;
    fold(out, in + at, round, at, n, size_);
    if (keeps && publishes) copy_bytes(shared, out, n);
  }
  member_.folded(base_ + round);
}

void Collective::take_slices(std::size_t round) {
  const auto array = part(op_.in.bytes(), round);
  const auto parts = static_cast<std::size_t>(size_);
  const bool takes = op_.kind == Operation::all_reduce || rank_ == op_.root;
  for (int i = 1; i < size_ && takes; ++i) {
    const int r = (rank_ + i) % size_;
    const auto begin = cut(array.bytes, parts, static_cast<std::size_t>(r));
    const auto end = cut(array.bytes, parts, static_cast<std::size_t>(r) + 1);
    member_.await_folded(r, base_ + round);
    copy_bytes(bytes_of(op_.out) + array.from + begin, folded_slice(r, round) + begin, end - begin);
  }
  member_.taken(base_ + round);
}

}  // namespace tutti::backend::memory
