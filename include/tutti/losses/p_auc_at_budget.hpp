#pragma once

#include <cstdint>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct PAucAtBudgetOptions {
  enum class Surrogate : std::uint8_t { trapezoid, pairwise };
  enum class Scale : std::uint8_t { iqr, band };
  enum class Basis : std::uint8_t { fpr, population };
  enum class Positives : std::uint8_t { pool, live };

  std::int64_t classes = 1;  ///< C; one is binary, more are one-vs-rest.
  double alpha = 0;          ///< The band of false positive rates: 0 <= alpha < beta <= 1.
  double beta = 0.005;
  Surrogate surrogate = Surrogate::trapezoid;
  int knots = 2;  ///< K of the trapezoid rule, 2 or more.
  Scale tau_scale = Scale::iqr;
  Basis basis = Basis::fpr;  ///< Thresholds from the independent negatives, or from all such rows.
  double temperature = 0.1;  ///< Times the scale: no unit.
  Positives positives = Positives::pool;  ///< live: without those of the queue.
  Interpolation interpolation = Interpolation::higher;
  Reduction reduction = Reduction::mean;  ///< Not mean_positive.
  GradScale scale = GradScale::for_mean_reducer;
  std::int64_t ignore_index = default_ignore_index;
  PoolOptions pool{};
};

/// Of one class; NaN and 0 where it is not valid.
struct PAucDiagnostics {
  double t_alpha = 0;  ///< The thresholds of the band's ends.
  double t_beta = 0;
  double tau_eff = 0;               ///< temperature times the scale of the scores.
  std::int64_t band_negatives = 0;  ///< Independent negatives within [t_beta, t_alpha].
  double variance = 0;              ///< Of what the positives contribute.
};

struct PAucResult : LossResult {
  std::vector<PAucDiagnostics> diagnostics;  ///< [C]
};

/// One minus the area under the ROC curve between two false positive rates, divided by the width of
/// the band. With Q the quantile of the reference scores (rows with iid set: negatives for
/// Basis::fpr, all for population), all of it a constant for the gradient:
///
///     t_a = Q(1 - alpha), t_b = Q(1 - beta); scale = Q(0.75) - Q(0.25), or t_a - t_b for band
///     tau = temperature * scale
///     trapezoid: knots f_k from alpha to beta, t_k = Q(1 - f_k), TPR_k = mean over positives i of
///                σ((s_i - t_k) / tau); loss = 1 - sum of w_k TPR_k / (K - 1), w = 1/2 at both ends
///     pairwise:  band = negatives with t_b <= s <= t_a, independent or not;
///                loss = 1 - mean over positives i and band j of σ((s_i - s_j) / tau)
///
/// Narasimhan, Agarwal: "SVM_pAUC^tight", KDD 2013, for the band as an objective; Zhu, Li, Wang,
/// Wu, Yang: "When AUC meets DRO", ICML 2022, for differentiable surrogates. A class without
/// positives or independent negatives, with a scale of 1e-12 or less, or (pairwise) with nothing in
/// the band is not valid.
///
/// On the wire: as RecallAtQuantile with the order statistics of 4 to K + 4 thresholds per class,
/// then one all_reduce; pairwise also gathers the band's scores and adds up a number for each.
class PAucAtBudget final : public RankingLoss {
 public:
  using Options = PAucAtBudgetOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit PAucAtBudget(const Options& options = {});
  const Options& options() const noexcept { return options_; }

  PAucResult operator()(ProcessGroup* group, const RankingBatch& batch,
                        const CallOptions& call = {});

 private:
  LossResult compute(ProcessGroup* group, const RankingBatch& batch,
                     const CallOptions& call) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
