#include <tutti/losses/sup_con.hpp>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/features/softmax_terms.hpp"
#include "losses/features/tiles.hpp"
#include "losses/options.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] losses {
namespace {

using internal::losses::FeatureRows;
using internal::losses::Tile;

/// The positives of each row.
class Positives {
 public:
  explicit Positives(const FeatureRows& rows) : order_(rows.labels().size()) {
    const auto labels = rows.labels();
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    std::ranges::stable_sort(order_, {}, [&](std::int64_t i) { return label(labels, i); });
    first_.resize(order_.size());
    last_.resize(order_.size());
    for (std::size_t begin = 0; begin < order_.size();) {
      auto end = begin + 1;
      while (end < order_.size() && label(labels, order_[end]) == label(labels, order_[begin]))
        ++end;
      for (auto i = begin; i < end; ++i) {
        first_[static_cast<std::size_t>(order_[i])] = begin;
        last_[static_cast<std::size_t>(order_[i])] = end;
      }
      begin = end;
    }
  }
  double count(std::size_t row) const { return static_cast<double>(last_[row] - first_[row] - 1); }

  /// Calls f(row, column) for each pair of positives in the tile.
  template <typename T, typename F>
  void for_pairs(const Tile<T>& tile, const F& f) const {
    for (std::size_t i = 0; i < tile.block.rows; ++i) {
      const auto row = tile.first_row + static_cast<std::int64_t>(i);
      const auto at = static_cast<std::size_t>(row);
      const auto end = order_.begin() + static_cast<std::ptrdiff_t>(last_[at]);
      auto next = std::lower_bound(order_.begin() + static_cast<std::ptrdiff_t>(first_[at]), end,
                                   tile.first_column);
      for (; next != end && *next < tile.first_column + tile.columns; ++next)
        if (*next != row) f(row, *next);
    }
  }

 private:
  static std::int64_t label(std::span<const std::int64_t> labels, std::int64_t i) {
    return labels[static_cast<std::size_t>(i)];
  }

  std::vector<std::int64_t> order_;        // Rows by label, then by number.
  std::vector<std::size_t> first_, last_;  // By row: its label's part of order_.
};

/// The loss is sum over rows i with positives of w_i (l_i - mean of x_ip) / V, with l_i the
/// log-sum-exp of the other rows and V the sum of their w_i.
template <typename T>
FeatureResult sup_con_of(FeatureRows& rows, const SupConOptions& options, double scale) {
  internal::losses::Tiles<T> tiles(rows, options.engine);
  const Positives positives(rows);
  rows.set_weights([&](std::size_t row) { return positives.count(row) > 0; });
  const auto gathered = tiles.log_sums(scale, [&](const Tile<T>& tile) {
    positives.for_pairs(tile, [&](std::int64_t row, std::int64_t column) {
      tile.more[row - tile.first_row] += static_cast<double>(tile.at(row, column));
    });
  });
  internal::losses::BySide log_sums;
  log_sums[0].reserve(static_cast<std::size_t>(rows.rows()));
  const auto weights = rows.weights();
  std::vector<double> of_positives(weights.size());
  const double loss = internal::losses::sum_over_rows(rows.rows(), [&](std::size_t i) {
    log_sums[0].push_back(gathered[0][2 * i]);
    const double count = positives.count(i);
    if (count == 0) return 0.0;
    of_positives[i] = weights[i] / count;
    return weights[i] * (log_sums[0][i] - scale * gathered[0][2 * i + 1] / count);
  });
  const double factor = rows.mass() > 0 ? 1 / rows.mass() : 0;
  const internal::losses::SoftmaxRows<T> terms(rows, log_sums, weights, scale, 0);
  const auto& kernels = internal::losses::feature_kernels<T>();
  // A pair of rows is twice in the gradients' products with their rows.
  auto sums = tiles.gradients(
      {.times = {0.5, 0}, .factor = scale * factor * rows.scale_of(options.grad_scale)},
      [&](const Tile<T>& tile) {
        terms.weigh(tile, kernels);
        tile.for_own_pairs([&](std::int64_t row) { tile.at(row, row) = 0; });
        positives.for_pairs(tile, [&](std::int64_t row, std::int64_t column) {
          tile.at(row, column) -= static_cast<T>(of_positives[static_cast<std::size_t>(row)] +
                                                 of_positives[static_cast<std::size_t>(column)]);
        });
      });
  return finish(rows, loss * factor, std::move(sums), factor, options.grad_scale);
}

/// @throws Error if the scale 1 / temperature would be out of range.
double scale_at(double temperature) {
  if (!(temperature >= 1e-6 && temperature <= 1e6))
    internal::failf(Errc::invalid_argument,
                    "sup_con: temperature is {}; it must be between 1e-6 and 1e6", temperature);
  return std::clamp(1 / temperature, 1e-6, 1e6);
}

}  // namespace

SupCon::SupCon(const Options& options)
    : FeatureLoss("sup_con", scale_at(options.temperature), std::nullopt, options.grad_scale,
                  options.engine),
      options_(options) {}

FeatureResult SupCon::compute(ProcessGroup* group, const FeatureBatch& batch,
                              const CallOptions& options) try {
  FeatureRows rows(group, batch,
                   {.loss = name(),
                    .options = fmt::format("logit_scale {}, grad_scale {}", logit_scale(),
                                           internal::losses::word(options_.grad_scale)),
                    .sides = 1},
                   options_.engine, options);
  return rows.in_double() ? sup_con_of<double>(rows, options_, logit_scale())
                          : sup_con_of<float>(rows, options_, logit_scale());
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
