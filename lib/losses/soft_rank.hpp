#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "losses/radix_sort.hpp"

namespace tutti::internal::losses {

/// Soft ranks of the positive rows ("anchors") of one pool of scores s, at temperature t:
///
///     A_k = 1 + sum over j != k of σ((s_j - s_k) / t)        B_k the same over positive rows j
///     D_k =     sum over j != k of σ'((s_j - s_k) / t)       E_k the same over positive rows j
///
/// and the transposed sums that their gradients need. In double, in memory proportional to the
/// pool. Every number depends on the pool alone, not on who asks for which part of it.
/// Several threads may call const members at the same time.
///
/// Three ways, held against each other by the tests:
///   pairs    every anchor with every row.
///   windows  sorted; rows that are further than 32 to 54 temperatures away count as 0 or 1.
///   cells    sorted into cells of two temperatures. A cell is its Chebyshev moments. How they act
///   on
///            a near cell depends on the distance of the two alone; all far cells of one side act
///            together, as eight sums of exponentials. Linear in the pool at any temperature.
///
/// The method of cells is the fast multipole idea in one dimension with the kernel σ: Greengard and
/// Rokhlin, "A fast algorithm for particle simulations", 1987; by interpolation: Fong and Darve,
/// "The black-box fast multipole method", 2009.
class SoftRank {
 public:
  enum class Engine : std::uint8_t { automatic, pairs, windows, cells };

  /// Finite scores, at most 2^31 of them; temperature > 0.
  SoftRank(std::span<const double> scores, std::span<const std::uint8_t> positive,
           double temperature, Engine engine = Engine::automatic);

  Engine engine() const noexcept { return engine_; }
  std::size_t rows() const noexcept { return sorted_.size(); }
  /// Anchors are numbered in the order of their scores.
  std::size_t anchors() const noexcept { return anchors_.size(); }
  /// Which row an anchor is.
  std::uint32_t row(std::size_t anchor) const noexcept { return order_[anchor_at_[anchor]]; }
  /// Which anchors are rank's part of the work: [first, last). All parts cost about the same.
  std::pair<std::size_t, std::size_t> share(int rank, int ranks) const noexcept;

  struct Sums {
    double a = 1, b = 1, d = 0, e = 0;
  };
  /// Of anchors [first, first + out.size()).
  void sums(std::size_t first, std::span<Sums> out) const;

  struct Slopes {
    double a = 0, b = 0;
  };
  /// out[i] = sums over anchors k that are not rows[i] of a_k σ'((s_rows[i] - s_k) / t), and of b_k
  /// (0 for rows that are not positive). a, b: one number per anchor. Rows in a run are cheaper.
  void slopes(std::span<const double> a, std::span<const double> b,
              std::span<const std::uint32_t> rows, std::span<Slopes> out) const;

  /// Evaluations of σ and σ' of a pair, or of a series at a row, by sums() and slopes() so far.
  /// Slopes of a positive row are not more than those of another.
  std::uint64_t evaluations() const noexcept;

 private:
  template <typename Score>
  bool sort_as(std::span<const double> scores, std::span<const std::uint8_t> positive);
  struct Cell {
    std::int64_t index = 0;
    double origin = 0;                              // A score.
    double begin = 0;                               // Its lower end, above the origin.
    std::size_t first = 0, last = 0;                // Of sorted_.
    std::size_t first_anchor = 0, last_anchor = 0;  // Of anchors_.
    std::size_t near_first = 0, near_last = 0;      // Cells that act one by one.
  };
  class Wanted;
  void make_cells();
  void make_moments();
  std::vector<double> far_sums(const std::vector<double>& moments) const;
  void choose();
  bool windows_within(double most);
  double place(double score, const Cell& cell) const noexcept;
  void places(std::span<const double> scores, const Cell& cell, std::vector<double>& out) const;
  std::uint64_t sums_by_cells(std::size_t first, std::span<Sums> out) const;
  std::uint64_t sums_by_windows(std::size_t first, std::span<Sums> out, double reach) const;
  std::uint64_t slopes_by_cells(std::span<const double> a, std::span<const double> b,
                                const Wanted& slot, std::span<Slopes> out) const;
  std::uint64_t slopes_by_windows(std::span<const double> a, std::span<const double> b,
                                  const Wanted& slot, std::span<Slopes> out, double reach) const;

  double temperature_;
  Engine engine_;
  double reach_ = 0;                      // In score units: further rows count as 0 or 1.
  Raw<double> sorted_;                    // All scores, ascending.
  Raw<std::uint32_t> order_;              // Row of each.
  std::vector<double> anchors_;           // Positive scores, ascending.
  std::vector<std::uint32_t> anchor_at_;  // Where in sorted_ each is.
  std::vector<std::uint64_t> work_;       // Windows: rows in those of the anchors before.
  std::vector<Cell> cells_;
  std::vector<double> moments_;  // Per cell: of all rows, then of the anchors.
  std::vector<double> far_;      // The same of the cells that are not near.
  alignas(std::atomic_ref<std::uint64_t>::required_alignment) mutable std::uint64_t evaluations_ =
      0;
};

}  // namespace tutti::internal::losses
