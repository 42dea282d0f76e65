#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "losses/soft_rank_cells.hpp"
#include "losses/soft_rank_pool.hpp"

namespace tutti::internal::losses {

/// Soft ranks of the positive rows ("anchors") of one pool of scores s, at temperature t:
///
///     A_k = 1 + sum over j != k of σ((s_j - s_k) / t)        B_k the same over positive rows j
///     D_k =     sum over j != k of σ'((s_j - s_k) / t)       E_k the same over positive rows j
///
/// and the transposed sums that the gradients need. Computes in double, in memory proportional to
/// the pool. Every number depends on the pool alone, not on the part that a rank computes. Several
/// threads may call const members at the same time.
///
/// The three methods, which the tests compare with each other:
///   pairs    every anchor with every row.
///   windows  sorted; rows further than 32 to 54 temperatures away count as 0 or 1.
///   cells    sorted into cells of two temperatures (soft_rank_cells), represented by Chebyshev
///            moments. Near cells act on each other by a matrix that depends only on their
///            distance. All far cells of one side act together, as eight sums of exponentials
///            (soft_rank_expansion). Linear in the pool at any temperature.
class SoftRank {
 public:
  enum class Engine : std::uint8_t { automatic, pairs, windows, cells };

  /// Requires at most 2^31 scores, all finite, and temperature > 0.
  SoftRank(std::span<const double> scores, std::span<const std::uint8_t> positive,
           double temperature, Engine engine = Engine::automatic);

  Engine engine() const noexcept { return engine_; }
  std::size_t rows() const noexcept { return pool_.scores.size(); }
  /// Returns the number of anchors. Anchors are ordered by score.
  std::size_t anchors() const noexcept { return pool_.anchors.size(); }
  /// Returns the row of an anchor.
  std::uint32_t row(std::size_t anchor) const noexcept {
    return pool_.rows[pool_.anchor_at[anchor]];
  }
  /// Returns the anchors [first, last) of rank's part of the work. All parts cost about the same.
  std::pair<std::size_t, std::size_t> share(int rank, int ranks) const noexcept;

  using Sums = SoftRankSums;
  /// Computes the sums of anchors [first, first + out.size()).
  void sums(std::size_t first, std::span<Sums> out) const;

  using Slopes = SoftRankSlopes;
  /// out[i] = two sums over the anchors k other than rows[i]: of a_k σ'((s_rows[i] - s_k) / t), and
  /// of b_k times the same σ'. The second sum is 0 if the row is not positive. a, b: one number per
  /// anchor. Consecutive rows cost less.
  void slopes(std::span<const double> a, std::span<const double> b,
              std::span<const std::uint32_t> rows, std::span<Slopes> out) const;

 private:
  void choose();
  bool windows_within(double most);
  void sums_by_windows(std::size_t first, std::span<Sums> out) const;
  void slopes_by_windows(std::span<const double> a, std::span<const double> b,
                         const WantedRows& slot, std::span<Slopes> out) const;

  double temperature_;
  Engine engine_;
  double reach_;  // In score units: rows beyond it count as 0 or 1. Pairs: infinite.
  SortedPool pool_;
  std::vector<std::uint64_t> work_;     // Windows: total rows in the windows of earlier anchors.
  std::optional<SoftRankCells> cells_;  // Used by the engine "cells".
};

}  // namespace tutti::internal::losses
