#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "losses/soft_rank_pool.hpp"

namespace tutti::internal::losses {

/// The engine "cells" of a SoftRank. Every function gets the same pool. The method is the fast
/// multipole method in one dimension with the kernel σ: Greengard and Rokhlin, "A fast algorithm
/// for particle simulations", 1987. The interpolation follows Fong and Darve, "The black-box fast
/// multipole method", 2009.
class SoftRankCells {
 public:
  /// Requires a pool that is not empty. Rows beyond `reach` count as 0 or 1.
  SoftRankCells(const SortedPool& pool, double temperature, double reach);
  /// Returns the cost of all sums and slopes, in evaluations of a pair.
  double cost(const SortedPool& pool) const;
  /// Computes the moments. Call it before sums() and slopes().
  void make_moments(const SortedPool& pool);

  /// These compute as in SoftRank.
  void sums(const SortedPool& pool, std::size_t first, std::span<SoftRankSums> out) const;
  void slopes(const SortedPool& pool, std::span<const double> a, std::span<const double> b,
              const WantedRows& slot, std::span<SoftRankSlopes> out) const;

 private:
  struct Cell {
    std::int64_t index = 0;
    // The lowest score since the last wide gap.
    double origin = 0;
    double begin = 0;                 // Lower end of the cell, relative to the origin.
    std::size_t first = 0, last = 0;  // Range of the scores.
    std::size_t first_anchor = 0, last_anchor = 0;  // Range of the anchors.
    std::size_t near_first = 0, near_last = 0;      // Near cells, which act one by one.
  };
  std::vector<double> far_sums(const std::vector<double>& moments) const;
  double position(double score, const Cell& cell) const noexcept;
  void positions(std::span<const double> scores, const Cell& cell, std::vector<double>& out) const;

  double temperature_;
  std::vector<Cell> cells_;
  std::vector<double> moments_;  // Per cell: moments of all rows, then of the anchors.
  std::vector<double> far_;      // Sums of exponentials of the far cells.
};

}  // namespace tutti::internal::losses
