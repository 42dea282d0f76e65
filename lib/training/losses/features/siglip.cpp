#include <tutti/losses/siglip.hpp>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/features/softmax_terms.hpp"
#include "losses/features/tiles.hpp"
#include "losses/options.hpp"
#include "losses/summed_loss.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] losses {
namespace {

using internal::losses::AlignedArray;
using internal::losses::FeatureRows;
using internal::losses::Tile;

/// The loss is sum over i of w_i (R_i + C_i) / (2 M), with M the sum of the weights, R_i the sum of
/// the terms of row i and C_i that of column i.
template <typename T>
FeatureResult sig_lip_of(FeatureRows& rows, const SigLipOptions& options, double scale,
                         double bias) {
  internal::losses::Tiles<T> tiles(rows, options.engine);
  const auto own = rows.pair_products();
  const auto& weights = rows.weights();
  const auto count = weights.size();
  const auto padded = count + internal::losses::block_columns;
  const AlignedArray<T> of_rows(padded);
  std::fill_n(of_rows.data(), padded, T{0});
  std::copy(weights.begin(), weights.end(), of_rows.data());
  const auto& kernels = internal::losses::feature_kernels<T>();
  const double factor = rows.mass() > 0 ? 0.5 / rows.mass() : 0;
  auto sums = tiles.gradients(
      {.factor = scale * factor * rows.scale_of(options.grad_scale), .has_slopes = true},
      [&](const Tile<T>& tile) {
        kernels.logistic(tile.block, {.scale = static_cast<T>(scale),
                                      .bias = static_cast<T>(bias),
                                      .row_weight = of_rows.data() + tile.first_row,
                                      .column_weight = of_rows.data() + tile.first_column,
                                      .softplus = tile.softplus,
                                      .slopes = tile.slopes});
        tile.for_own_pairs([&](std::int64_t row) {
          const auto i = static_cast<std::size_t>(row);
          const double z = scale * own[i] + bias;
          const double slope = -2 * weights[i] * internal::losses::Logistic(-z).value;
          tile.at(row, row) = static_cast<T>(slope);
          tile.softplus[row - tile.first_row] += internal::losses::softplus(-z);
          tile.slopes[row - tile.first_row] += slope;
        });
      });
  const double loss = internal::losses::sum_over_rows(rows.rows(), [&](std::size_t i) {
    const auto at = sums.width * i + 2;
    return weights[i] * (sums.of_rows[0][at] + sums.of_rows[1][at]);
  });
  return finish(rows, loss * factor, std::move(sums), factor, options.grad_scale);
}

}  // namespace

SigLip::SigLip(const Options& options)
    : FeatureLoss("siglip", options.logit_scale, options.bias, options.grad_scale, options.engine),
      options_(options) {}

FeatureResult SigLip::compute(ProcessGroup* group, const FeatureBatch& batch,
                              const CallOptions& options) try {
  FeatureRows rows(group, batch,
                   {.loss = name(),
                    .options = fmt::format("logit_scale {}, bias {}, grad_scale {}", logit_scale(),
                                           bias(), internal::losses::word(options_.grad_scale))},
                   options_.engine, options);
  return rows.in_double() ? sig_lip_of<double>(rows, options_, logit_scale(), bias())
                          : sig_lip_of<float>(rows, options_, logit_scale(), bias());
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
