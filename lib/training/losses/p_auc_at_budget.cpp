#include <tutti/losses/p_auc_at_budget.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/global_batch.hpp"
#include "losses/options.hpp"
#include "losses/order_statistics.hpp"
#include "losses/soft_rank_kernels.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::failf;
using internal::losses::GlobalBatch;
using internal::losses::is_valid;
using internal::losses::Logistic;
using internal::losses::word;
/// A class is valid only if its tau_scale (interquartile range or band) is greater.
constexpr double least_scale = 1e-12;

/// Returns 1 - f for `knots` false positive rates f from alpha to beta, computed as torch.linspace
/// does in the type of the scores, with one rounding for each product and sum. The ends are those
/// of the band to the bit: an ulp could choose another score.
template <typename T>
std::vector<double> complements_of_knots(const PAucAtBudgetOptions& o) {
  std::vector<double> q;
  const T from = static_cast<T>(o.alpha);
  const T to = static_cast<T>(o.beta);
  const T step = (to - from) / static_cast<T>(o.knots - 1);
  for (int k = 0; k < o.knots; ++k) {
    const T f = k < o.knots / 2 ? std::fma(step, static_cast<T>(k), from)
                                : std::fma(-step, static_cast<T>(o.knots - 1 - k), to);
    q.push_back(static_cast<double>(T{1} - f));
  }
  q.front() = 1 - o.alpha;
  q.back() = 1 - o.beta;
  return q;
}

/// The thresholds and the band of one class.
struct Band {
  double t_alpha = 0, t_beta = 0, tau = 0;
  std::vector<double> knots;
  std::vector<double> scores;  ///< Pairwise: scores of the negatives in the band, of all ranks.
  std::vector<double> slopes;  ///< For each of these negatives, the sum over this rank's positives.
  /// This rank's rows in the band. Their scores begin at scores[first_own].
  std::vector<std::size_t> own;
  std::size_t first_own = 0;
};

}  // namespace

PAucAtBudget::PAucAtBudget(const Options& options)
    : RankingLoss("p_auc_at_budget", options.classes, options.temperature, options.ignore_index,
                  options.pool),
      options_(options) {
  if (!(options.alpha >= 0 && options.alpha < options.beta && options.beta <= 1))
    failf(Errc::invalid_argument, "{}: alpha is {} and beta {}; 0 <= alpha < beta <= 1 must hold",
          name(), options.alpha, options.beta);
  if (options.knots < 2)
    failf(Errc::invalid_argument, "{}: knots is {}; it must be 2 or more", name(), options.knots);
  internal::losses::check_budget(name(), options.budget, options.interpolation);
}

LossResult PAucAtBudget::compute(ProcessGroup* group, const Batch& batch,
                                 const CallOptions& options) try {
  const auto& o = options_;
  const double temperature = this->temperature();
  const bool pairwise = o.surrogate == Options::Surrogate::pairwise;
  const bool iqr = o.tau_scale == Options::Scale::iqr;
  const bool live = o.positives == Options::Positives::live;
  const bool by_weight = o.budget == Budget::weight;
  auto pool = internal::losses::GlobalBatch::collect(
      group, batch,
      {.loss = name(),
       .options = fmt::format(
           "classes {}, alpha {}, beta {}, surrogate {}, knots {}, tau_scale {}, basis {}, "
           "temperature {}, positives {}, interpolation {}, reduction {}, grad_scale {}, "
           "ignore_index {}{}",
           o.classes, o.alpha, o.beta, word(o.surrogate), o.knots, word(o.tau_scale), word(o.basis),
           temperature, word(o.positives), word(o.interpolation), word(o.reduction),
           word(o.grad_scale), o.ignore_index, by_weight ? ", budget weight" : ""),
       .classes = o.classes,
       .ignore_index = o.ignore_index,
       .uses_iid = true},
      queue(), options);
  const auto all_positives = [&](std::size_t c) {
    return live ? pool.total_positive(c).live : pool.total_positive(c).rows;
  };
  const auto mass_of = [&](std::size_t c) {
    return live ? pool.positive_mass(c).live : pool.positive_mass(c).rows;
  };
  const auto classes = static_cast<std::size_t>(o.classes);
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  auto result = internal::losses::start_result(o.classes);
  std::vector<PAucDiagnostics> diagnostics(classes, {none, none, none, 0, none});

  // Finds the thresholds. Only this step needs an order of all rows.
  std::vector<std::vector<double>> reference(classes);
  std::vector<std::vector<double>> reference_weights(classes);
  std::vector<internal::losses::Quantiles> lists(classes);
  for (std::size_t c = 0; c < classes; ++c) {
    const auto negatives = pool.total().iid - pool.total_positive(c).iid;
    if (pool.total_positive(c).rows == 0)
      result.status[c] = ClassStatus::no_positives;
    else if (negatives == 0)
      result.status[c] = ClassStatus::no_negatives;
    else if (all_positives(c) == 0)
      result.status[c] = ClassStatus::no_live_positives;
    else if (!(mass_of(c) > 0))
      result.status[c] = ClassStatus::no_weight;
    if (!is_valid(result, c)) continue;
    const bool all = o.basis == Options::Basis::population;
    for (std::size_t i = 0; i < pool.rows(); ++i)
      if (pool.is_iid(i) && (all || !pool.is_positive(i, c))) {
        reference[c].push_back(pool.scores(c)[i]);
        if (by_weight) reference_weights[c].push_back(pool.weight(i));
      }
    lists[c] = {reference[c],
                all ? pool.total().iid : negatives,
                {1 - o.alpha, 1 - o.beta},
                reference_weights[c]};
    if (iqr) lists[c].q.insert(lists[c].q.end(), {0.75, 0.25});
    if (pairwise) continue;
    const auto knots = pool.in_float() && !by_weight ? complements_of_knots<float>(o)
                                                     : complements_of_knots<double>(o);
    lists[c].q.insert(lists[c].q.end(), knots.begin(), knots.end());
  }
  const auto add_up = [&](auto numbers) { pool.add_up(numbers); };
  const auto found = internal::losses::quantiles_of(
      lists, {o.interpolation, o.budget, pool.in_float()}, add_up, add_up);
  std::vector<Band> bands(classes);
  for (std::size_t c = 0; c < classes; ++c) {
    if (!is_valid(result, c)) continue;
    const auto& t = found[c];
    if (t.empty()) {
      result.status[c] = ClassStatus::no_weight;
      continue;
    }
    auto& band = bands[c];
    band.t_alpha = t[0];
    band.t_beta = t[1];
    const double scale = iqr ? t[2] - t[3] : t[0] - t[1];
    if (!(scale > least_scale)) {
      result.status[c] = ClassStatus::no_spread;
      continue;
    }
    band.tau = temperature * scale;
    band.knots.assign(t.begin() + (iqr ? 4 : 2), t.end());
  }

  // Gathers every rank's negatives in the band, as (class, score).
  if (pairwise) {
    std::vector<double> mine;
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t i = 0; is_valid(result, c) && i < pool.rows(); ++i) {
        const double s = pool.scores(c)[i];
        if (pool.is_positive(i, c) || s < bands[c].t_beta || s > bands[c].t_alpha) continue;
        bands[c].own.push_back(i);
        mine.insert(mine.end(), {static_cast<double>(c), s});
      }
    const auto [all_scores, begin] = pool.gather(std::move(mine), 2);
    for (std::size_t k = 0; k < all_scores.size() / 2; ++k) {
      auto& band = bands[static_cast<std::size_t>(all_scores[2 * k])];
      if (k < begin) ++band.first_own;
      band.scores.push_back(all_scores[2 * k + 1]);
    }
    for (std::size_t c = 0; c < classes; ++c)
      if (is_valid(result, c) && bands[c].scores.empty())
        result.status[c] = ClassStatus::empty_band;
  }

  // Computes for each class the weighted sum of the values of this rank's positives and the sum of
  // their squares, counts the independent negatives in the band, and with weights also adds up the
  // values without them, for the variance.
  const auto& kernels = internal::losses::soft_rank_kernels();
  const std::size_t width = pool.weighted() ? 4 : 3;
  std::vector<double> sums(width * classes);
  std::vector<double> grad(pool.own() * classes);
  const auto grad_of = [&](std::size_t row, std::size_t c) -> double& {
    return grad[(row - pool.first_own()) * classes + c];
  };
  for (std::size_t c = 0; c < classes; ++c) {
    if (!is_valid(result, c)) continue;
    auto& band = bands[c];
    const auto scores = pool.scores(c);
    const double mass = mass_of(c);
    const double scale = 1 / band.tau;
    std::vector<double> own_positives;
    std::vector<double> own_weights;
    for (std::size_t i = 0; i < pool.rows(); ++i) {
      if (!pool.is_positive(i, c)) {
        if (pool.is_iid(i) && scores[i] >= band.t_beta && scores[i] <= band.t_alpha)
          sums[width * c + 2] += 1;
        continue;
      }
      if (live && !pool.is_live(i)) continue;
      double value = 0;
      double slope = 0;
      if (pairwise) {
        own_positives.push_back(scores[i]);
        own_weights.push_back(pool.weight(i));
        double both[2] = {};
        kernels.pairs(band.scores.data(), band.scores.size(), scores[i], scale, both);
        const auto count = static_cast<double>(band.scores.size());
        value = (count - both[0]) / count;  // σ(x) = 1 - σ(-x).
        slope = both[1] / count;
      } else {
        for (std::size_t k = 0; k < band.knots.size(); ++k) {
          const Logistic l((scores[i] - band.knots[k]) * scale);
          const double weight = k == 0 || k + 1 == band.knots.size() ? 0.5 : 1.0;
          value += weight * l.value / (o.knots - 1);
          slope += weight * l.slope() / (o.knots - 1);
        }
      }
      sums[width * c] += pool.weight(i) * value;
      sums[width * c + 1] += value * value;
      if (pool.weighted()) sums[width * c + 3] += value;
      if (pool.is_own(i)) grad_of(i, c) = -pool.weight(i) * slope * scale / mass;
    }
    // Without weights, the faster sum.
    const bool differ = std::ranges::any_of(own_weights, [](double w) { return w != 1; });
    band.slopes.resize(band.scores.size());
    for (std::size_t j = 0; j < band.scores.size(); ++j) {
      double both[2] = {};
      if (differ)
        kernels.slopes(own_positives.data(), own_weights.data(), nullptr, own_positives.size(),
                       band.scores[j], scale, both);
      else
        kernels.pairs(own_positives.data(), own_positives.size(), band.scores[j], scale, both);
      band.slopes[j] =
          both[differ ? 0 : 1] * scale / (mass * static_cast<double>(band.scores.size()));
    }
  }
  for (const auto& band : bands) sums.insert(sums.end(), band.slopes.begin(), band.slopes.end());
  pool.add_up(sums);

  const double share = internal::losses::class_weight(o.reduction, result);
  std::size_t slopes = width * classes;
  for (std::size_t c = 0; c < classes; ++c) {
    const auto& band = bands[c];
    if (!is_valid(result, c)) {
      slopes += band.slopes.size();
      continue;
    }
    for (std::size_t j = 0; j < band.own.size(); ++j)
      if (pool.is_own(band.own[j])) grad_of(band.own[j], c) = sums[slopes + band.first_own + j];
    slopes += band.slopes.size();
    const auto positives = static_cast<double>(all_positives(c));
    result.per_class[c] = 1 - sums[width * c] / mass_of(c);
    const double area = sums[width * c + (pool.weighted() ? 3 : 0)] / positives;
    result.loss += share * result.per_class[c];
    diagnostics[c] = {band.t_alpha, band.t_beta, band.tau,
                      static_cast<std::int64_t>(sums[width * c + 2]),
                      std::max(0.0, sums[width * c + 1] / positives - area * area)};
  }
  const double scale = share * pool.scale_of(o.grad_scale);
  for (double& value : grad) value *= scale;
  result.grad = pool.gradient(grad);
  pool.commit();
  diagnostics_ = std::move(diagnostics);
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
