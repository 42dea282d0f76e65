#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "losses/features/tiles.hpp"

// The gradient of log-sum-exps over rows, and over columns too.

namespace tutti::internal::losses {

/// The terms of every row and column of a loss with softmaxes, and their use in tiles.
///
/// exp(x - l_i) and exp(x - l_j), for the log-sum-exps l of a row and a column, differ by the
/// factor exp(l_i - m) exp(m - l_j). Where all l of a block are near their mean m, it replaces the
/// second exponential.
template <typename T>
class SoftmaxRows {
 public:
  /// `log_sums` and `weights` of all rows, by side: of a side's rows over the columns of the other.
  SoftmaxRows(const FeatureRows& rows, const BySide& log_sums, std::span<const double> weights,
              double scale, double floor)
      : sides_(rows.sides()), scale_(static_cast<T>(scale)), floor_(static_cast<T>(floor)) {
    double sum = 0;
    double count = 0;
    for (const auto& of_side : log_sums)
      for (const double l : of_side)
        if (std::isfinite(l)) {
          sum += l;
          ++count;
        }
    const double mean = count > 0 ? sum / count : 0;
    constexpr double near = sizeof(T) == sizeof(float) ? 20 : 200;
    for (std::size_t side = 0; side < static_cast<std::size_t>(sides_); ++side) {
      const auto& l = log_sums[side];
      auto& to = side_[side];
      // Padding, so that vectors and blocks of columns end within the arrays.
      const auto size = (l.size() / static_cast<std::size_t>(block_columns) + 1) *
                        static_cast<std::size_t>(block_columns);
      for (auto* array : {&to.center, &to.weight, &to.factor, &to.weighted}) {
        *array = AlignedArray<T>(size);
        std::fill_n(array->data(), size, T{0});
      }
      to.far.resize(size / static_cast<std::size_t>(block_rows));
      for (std::size_t i = 0; i < l.size(); ++i) {
        if (!std::isfinite(l[i])) continue;  // No other row: there is no pair.
        const double from_mean = l[i] - mean;
        to.center[i] = static_cast<T>(l[i] / scale);
        to.weight[i] = static_cast<T>(weights[i]);
        if (std::abs(from_mean) > near) {
          to.far[i / static_cast<std::size_t>(block_rows)] = 1;
          continue;
        }
        to.factor[i] = static_cast<T>(std::exp(from_mean));
        to.weighted[i] = static_cast<T>(weights[i] * std::exp(-from_mean));
      }
    }
  }

  /// Replaces the products of a tile by the weights of the gradient, except for own pairs.
  void weigh(const Tile<T>& tile, const FeatureKernels<T>& kernels) const {
    const auto& rows = side_[static_cast<std::size_t>(tile.side)];
    const auto& columns = side_[static_cast<std::size_t>(sides_ == 2 ? 1 - tile.side : 0)];
    const auto row = static_cast<std::size_t>(tile.first_row);
    const auto column = static_cast<std::size_t>(tile.first_column);
    SoftmaxTerms<T> terms{.scale = scale_,
                          .floor = floor_,
                          .row_center = rows.center.data() + row,
                          .row_weight = rows.weight.data() + row,
                          .column_center = columns.center.data() + column,
                          .column_weight = columns.weight.data() + column};
    const auto* far = columns.far.data() + column / static_cast<std::size_t>(block_rows);
    const bool all_near = rows.far[row / static_cast<std::size_t>(block_rows)] == 0 &&
                          std::none_of(far, far + block_columns / block_rows,
                                       [](std::uint8_t is_far) { return is_far != 0; });
    if (all_near) {
      terms.row_factor = rows.factor.data() + row;
      terms.column_factor = columns.weighted.data() + column;
    }
    kernels.softmax(tile.block, terms);
  }

 private:
  struct Side {
    AlignedArray<T> center, weight, factor, weighted;
    std::vector<std::uint8_t> far;  // By block of rows.
  };
  int sides_;
  T scale_, floor_;
  std::array<Side, 2> side_;
};

/// Adds terms over the rows in their order.
template <typename Term>
double sum_over_rows(std::int64_t rows, const Term& term) {
  double sum = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) sum += term(i);
  return sum;
}

/// Completes the result of a loss, and ends its call.
inline tutti::losses::FeatureResult finish(FeatureRows& rows, double value, GradientSums&& sums,
                                           double factor, GradScale scale) {
  const double share = factor * rows.scale_of(scale) / rows.ranks();
  tutti::losses::FeatureResult result;
  result.loss = value;
  result.grad_logit_scale = sums.scale * share;
  result.grad_bias = sums.bias * share;
  result.grad_anchors = std::move(sums.features[0]);
  result.grad_candidates = std::move(sums.features[1]);
  return result;
}

}  // namespace tutti::internal::losses
