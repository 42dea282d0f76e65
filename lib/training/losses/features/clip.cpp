#include <tutti/losses/clip.hpp>

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

using internal::losses::BySide;
using internal::losses::FeatureRows;
using internal::losses::Tile;

/// The loss is sum over i of w_i (R_i + C_i) / (2 M), with M the sum of the weights. R_i is the
/// cross-entropy of anchor i over the candidates: softplus(t_i), where t_i is the log-sum-exp of
/// the other pairs minus the pair's own logit x_i. The weight of the own pair in the gradient is
/// -σ(t_i); written so, neither loses digits if the own pair has all the mass. C_i is the same of
/// candidate i.
template <typename T>
FeatureResult clip_of(FeatureRows& rows, const ClipOptions& options, double scale) {
  internal::losses::Tiles<T> tiles(rows, options.engine);
  const auto own = rows.pair_products();
  const auto others = tiles.log_sums(scale);
  const double smoothing = options.label_smoothing;
  const auto columns = static_cast<double>(rows.rows());
  const auto products = smoothing > 0 ? tiles.sums_of_products() : BySide{};
  const auto& weights = rows.weights();
  BySide log_sums;
  std::vector<T> own_weights;
  for (auto& of_side : log_sums) of_side.reserve(own.size());
  own_weights.reserve(own.size());
  const double loss = internal::losses::sum_over_rows(rows.rows(), [&](std::size_t i) {
    const double x = scale * own[i];
    double term = 0;
    double slope = 0;
    for (std::size_t side = 0; side < 2; ++side) {
      const double t = others[side][i] - x;
      const double cross_entropy = internal::losses::softplus(t);
      log_sums[side].push_back(x + cross_entropy);
      term += cross_entropy;
      slope += smoothing * (1 - 1 / columns) - internal::losses::Logistic(t).value;
      if (smoothing > 0) term += smoothing * (x - scale * products[side][i] / columns);
    }
    own_weights.push_back(static_cast<T>(weights[i] * slope));
    return weights[i] * term;
  });
  const double factor = rows.mass() > 0 ? 0.5 / rows.mass() : 0;
  const internal::losses::SoftmaxRows<T> terms(rows, log_sums, weights, scale,
                                               smoothing / std::max(columns, 1.0));
  const auto& kernels = internal::losses::feature_kernels<T>();
  auto sums = tiles.gradients({.factor = scale * factor * rows.scale_of(options.grad_scale)},
                              [&](const Tile<T>& tile) {
                                terms.weigh(tile, kernels);
                                tile.for_own_pairs([&](std::int64_t row) {
                                  tile.at(row, row) = own_weights[static_cast<std::size_t>(row)];
                                });
                              });
  return finish(rows, loss * factor, std::move(sums), factor, options.grad_scale);
}

}  // namespace

Clip::Clip(const Options& options)
    : FeatureLoss("clip", options.logit_scale, std::nullopt, options.grad_scale, options.engine),
      options_(options) {
  internal::losses::check_label_smoothing("clip", options.label_smoothing);
}

FeatureResult Clip::compute(ProcessGroup* group, const FeatureBatch& batch,
                            const CallOptions& options) try {
  FeatureRows rows(group, batch,
                   {.loss = name(),
                    .options = fmt::format("logit_scale {}, label_smoothing {}, grad_scale {}",
                                           logit_scale(), options_.label_smoothing,
                                           internal::losses::word(options_.grad_scale))},
                   options_.engine, options);
  return rows.in_double() ? clip_of<double>(rows, options_, logit_scale())
                          : clip_of<float>(rows, options_, logit_scale());
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
