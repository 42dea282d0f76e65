#include <tutti/losses/squared_auc.hpp>

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/global_batch.hpp"
#include "losses/options.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::losses::invalidate;
using internal::losses::word;

/// Moments of the scores of one class: [0] of negatives, [1] of positives. `mean` is relative to
/// `shift`, a score near all others. Terms are multiplied by a share of the weights, because the
/// product of a weight alone may overflow.
struct ScoreMoments {
  double shift = 0;
  std::array<double, 2> weight{}, mean{}, variance{};
};
constexpr std::size_t moments_width = sizeof(ScoreMoments) / sizeof(double);

ScoreMoments moments_of(const internal::losses::GlobalBatch& pool, std::size_t c) {
  ScoreMoments m;
  const auto scores = pool.scores(c);
  if (!scores.empty()) m.shift = scores[0];
  for (std::size_t i = 0; i < scores.size(); ++i)
    m.weight[pool.is_positive(i, c) ? 1 : 0] += pool.weight(i);
  /// Adds the mean of term(i, side) over each class to sums[side].
  const auto add_means = [&](std::array<double, 2>& sums, const auto& term) {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const std::size_t side = pool.is_positive(i, c) ? 1 : 0;
      if (m.weight[side] > 0) sums[side] += pool.weight(i) / m.weight[side] * term(i, side);
    }
  };
  add_means(m.mean, [&](std::size_t i, std::size_t) { return scores[i] - m.shift; });
  add_means(m.variance, [&](std::size_t i, std::size_t side) {
    const double distance = scores[i] - m.shift - m.mean[side];
    return distance * distance;
  });
  return m;
}

/// Merges the moments of disjoint sets of rows. Chan, Golub, LeVeque: "Updating Formulae and a
/// Pairwise Algorithm for Computing Sample Variances", 1979. The shift is that of the first set
/// that has rows; sets without weight may have any.
ScoreMoments merged_moments(std::span<const ScoreMoments> sets) {
  const auto total = [](const ScoreMoments& set) { return set.weight[0] + set.weight[1]; };
  const auto first = std::ranges::find_if(sets, [&](const auto& set) { return total(set) > 0; });
  ScoreMoments all;
  if (first == sets.end()) return all;
  all.shift = first->shift;
  for (std::size_t side = 0; side < 2; ++side) {
    const auto mean = [&](const ScoreMoments& set) {
      return set.shift - all.shift + set.mean[side];
    };
    const auto share = [&](const ScoreMoments& set) { return set.weight[side] / all.weight[side]; };
    for (const auto& set : sets) all.weight[side] += set.weight[side];
    for (const auto& set : sets)
      if (set.weight[side] > 0) all.mean[side] += share(set) * mean(set);
    for (const auto& set : sets) {
      if (!(set.weight[side] > 0)) continue;
      const double distance = mean(set) - all.mean[side];
      all.variance[side] += share(set) * (set.variance[side] + distance * distance);
    }
  }
  return all;
}

}  // namespace

SquaredAuc::SquaredAuc(const Options& options)
    : RankingLoss("squared_auc", options.classes, 1, options.ignore_index, options.pool),
      options_(options) {
  if (!std::isfinite(options.margin))
    internal::failf(Errc::invalid_argument, "{}: margin is {}; it must be finite", name(),
                    options.margin);
}

LossResult SquaredAuc::compute(ProcessGroup* group, const RankingBatch& batch,
                               const CallOptions& call) try {
  const auto& o = options_;
  internal::losses::GlobalBatch pool(
      group, batch,
      {.loss = name(),
       .options =
           fmt::format("classes {}, margin {}, reduction {}, grad_scale {}, ignore_index {}",
                       o.classes, o.margin, word(o.reduction), word(o.grad_scale), o.ignore_index),
       .classes = o.classes,
       .ignore_index = o.ignore_index},
      queue(), call);
  const auto classes = static_cast<std::size_t>(o.classes);
  std::vector<double> mine;
  for (std::size_t c = 0; c < classes; ++c) {
    const auto m = moments_of(pool, c);
    mine.insert(mine.end(), {m.shift, m.weight[0], m.weight[1], m.mean[0], m.mean[1], m.variance[0],
                             m.variance[1]});
  }
  const auto gathered = pool.gather(std::move(mine), moments_width * classes).first;

  auto result = internal::losses::start_result(o.classes);
  std::vector<ScoreMoments> moments(classes);
  for (std::size_t c = 0; c < classes; ++c) {
    std::vector<ScoreMoments> sets;
    for (auto k = moments_width * c; k < gathered.size(); k += moments_width * classes) {
      const auto* n = &gathered[k];
      sets.push_back({n[0], {n[1], n[2]}, {n[3], n[4]}, {n[5], n[6]}});
    }
    moments[c] = merged_moments(sets);
    const auto positives = pool.total_positive(c).rows;
    if (positives == 0)
      invalidate(result, c, ClassStatus::no_positives);
    else if (positives == pool.total().rows)
      invalidate(result, c, ClassStatus::no_negatives);
    else if (!(moments[c].weight[0] > 0 && moments[c].weight[1] > 0))
      invalidate(result, c, ClassStatus::no_weight);
  }

  const double share = internal::losses::class_weight(o.reduction, result.valid);
  const double scale = 2 * share * pool.scale_of(o.grad_scale);
  std::vector<double> grad(pool.own() * classes);
  for (std::size_t c = 0; c < classes; ++c) {
    if (result.valid[c] == 0) continue;
    const auto& m = moments[c];
    const double missing = o.margin - (m.mean[1] - m.mean[0]);
    result.per_class[c] = missing * missing + m.variance[0] + m.variance[1];
    result.loss += share * result.per_class[c];
    for (std::size_t i = 0; i < pool.own(); ++i) {
      const auto row = pool.first_own() + i;
      const std::size_t side = pool.is_positive(row, c) ? 1 : 0;
      const double distance = pool.scores(c)[row] - m.shift - m.mean[side];
      grad[i * classes + c] = scale * (pool.weight(row) / m.weight[side]) *
                              (distance + (side == 1 ? -missing : missing));
    }
  }
  result.grad = pool.gradient(grad);
  pool.commit();
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
