#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "losses/features/feature_kernels.hpp"
#include "losses/features/feature_rows.hpp"

// Passes over the logits of all pairs, block by block. A block has 128 rows and 512 columns and
// lies at multiples of these numbers; its products are made in one call, whichever rank computes
// it. Sums over a row are made over the blocks in the order of their columns. Nothing depends on
// the split, the threads and the sizes of tiles.

namespace tutti::internal::losses {

/// One block: products of rows with columns, which are rows of the other side, or of the same side
/// if there is one. The product of a row with the column of its own number is no_pair.
template <typename T>
struct Tile {
  Block<T> block{};
  int side = 0;
  std::int64_t first_row = 0, first_column = 0;
  std::int64_t columns = 0;    ///< Without padding.
  double* more = nullptr;      ///< log_sums(): by row, a sum that the loss adds.
  double* softplus = nullptr;  ///< gradients(): by row, as in LogisticTerms.
  double* slopes = nullptr;

  T& at(std::int64_t row, std::int64_t column) const {
    return block.k[static_cast<std::size_t>(row - first_row) * block.stride +
                   static_cast<std::size_t>(column - first_column)];
  }
  /// Calls f(row) for each row whose own number is a column.
  template <typename F>
  void for_own_pairs(const F& f) const {
    const auto last =
        std::min(first_row + static_cast<std::int64_t>(block.rows), first_column + columns);
    for (auto row = std::max(first_row, first_column); row < last; ++row) f(row);
  }
};

template <typename T>
using TileFunction = std::function<void(const Tile<T>& tile)>;

/// The rules of a loss for its sums over rows.
struct GradientRules {
  /// grad_logit_scale and grad_bias take the sums of each side this many times.
  std::array<double, 2> times{1, 0};
  double factor = 1;        ///< Of the gradients of features.
  bool has_slopes = false;  ///< Sums of softplus and slopes are gathered too.
};

/// The sums of gradients(), before any factor.
struct GradientSums {
  std::size_t width = 1;
  double scale = 0, bias = 0;
  BySide of_rows{};  ///< `width` numbers by row; with has_slopes the third is the sum of softplus.
  std::array<Tensor, 2> features{};
};

template <typename T>
class Tiles {
 public:
  Tiles(FeatureRows& rows, const tutti::losses::FeatureEngine& engine);

  /// Collective. Returns, for each row, the log of the sum of exp(scale product) over the other
  /// rows; -inf without one. With `visit`, also Tile::more: [rows, 2].
  BySide log_sums(double scale, const TileFunction<T>& visit = {});
  /// Collective. Returns the sum over columns of the products of row i, by side.
  BySide sums_of_products();
  /// Collective. `weigh` turns each product of a tile into its weight in the row's gradient, in
  /// place.
  GradientSums gradients(const GradientRules& rules, const TileFunction<T>& weigh);

 private:
  struct Scratch;
  /// One thread's work: rows of one side.
  struct Task {
    int side;
    std::int64_t first, count;
  };
  /// Calls run(task, columns, scratch) for all tasks of this rank.
  template <typename Run>
  void over_tasks(const Run& run);
  template <typename Use>
  void over_blocks(const Task& task, const Scratch& scratch, const Use& use) const;
  void multiply(const Scratch& scratch, const Task& rows, Tile<T>& tile) const;
  /// The rows of `side` from `first` on.
  const T* features(int side, std::int64_t first) const {
    return static_cast<const T*>(rows_.features(side)) + first * rows_.dims();
  }
  std::size_t in_share(int side, std::int64_t row) const {
    return static_cast<std::size_t>(row - rows_.share(side).offset(rows_.rank()));
  }
  int other(int side) const { return rows_.sides() == 2 ? 1 - side : side; }

  FeatureRows& rows_;
  const tutti::losses::FeatureEngine& engine_;
  void (*gemm_)(const tutti::losses::MatrixProduct&);
  const FeatureKernels<T>& kernels_;
};

}  // namespace tutti::internal::losses
