#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <string>

// The sizes at which the way of a call's data changes, measured on two cores (docs/performance.md).

namespace tutti::backend::memory {

/// The bytes of a call's data beyond which ranks access each other's arrays: its second
/// synchronisation costs less than a copy.
constexpr std::size_t least_direct = std::size_t{2} << 10;
/// There data moves in pieces that stay in the first-level cache.
constexpr std::size_t direct_piece = std::size_t{8} << 10;
/// Private arrays of other processes: a failed call of a peer waits for one piece at most.
constexpr std::size_t read_piece = std::size_t{1} << 20;
/// The bytes of the blocks for which tests compare reads with slots (ReadChoice): in the first and
/// the second level of a core's cache, and beyond.
inline constexpr std::array tested_reads{std::size_t{32} << 10, std::size_t{256} << 10,
                                         std::size_t{4} << 20};
/// In slots: the bytes of an array up to which each rank folds the whole arrays. Two ranks read as
/// much as with a slice each, in one synchronisation less; a reproducible sum computes more.
constexpr std::size_t fold_everything(std::size_t ranks, bool reproducible) noexcept {
  if (ranks == 2) return std::size_t{reproducible ? 16U : 64U} << 10;
  return (std::size_t{32} << 10) / ranks;
}
/// The least bytes of a round, and of the blocks in which its data is folded.
constexpr std::size_t least_piece = std::size_t{16} << 10;
constexpr std::size_t fold_block = std::size_t{32} << 10;

static_assert(direct_piece % sizeof(std::complex<double>) == 0 &&
                  fold_block % sizeof(std::complex<double>) == 0,
              "a piece has whole elements");

/// The thresholds as a table for `tutti info`.
std::string describe_thresholds();

}  // namespace tutti::backend::memory
