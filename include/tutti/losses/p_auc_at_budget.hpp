#pragma once

#include <cstdint>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of PAucAtBudget. Equal on all ranks.
struct PAucAtBudgetOptions {
  /// The estimate of the area: over thresholds (knots), or over pairs of a positive and a negative
  /// of the band.
  enum class Surrogate : std::uint8_t { trapezoid, pairwise };
  /// The unit of `temperature`: the interquartile range, or the width of the band in scores.
  enum class Scale : std::uint8_t { iqr, band };
  /// The rows that thresholds are quantiles of: independent negatives, or independent rows.
  enum class Basis : std::uint8_t { fpr, population };
  /// The positives that count: of the whole pool, or of this call alone.
  enum class Positives : std::uint8_t { pool, live };

  std::int64_t classes = 1;  ///< C. One class is binary; several are one-vs-rest.
  double alpha = 0;          ///< The band of false positive rates: 0 <= alpha < beta <= 1.
  double beta = 0.005;       ///< The upper end of the band.
  Surrogate surrogate = Surrogate::trapezoid;  ///< The form of the loss; see PAucAtBudget.
  int knots = 2;                               ///< K of the trapezoid rule; 2 or more.
  Scale tau_scale = Scale::iqr;                ///< `scale` in the formulas of PAucAtBudget.
  Basis basis =
      Basis::fpr;  ///< Source of the thresholds: independent negatives or independent rows.
  double temperature = 0.1;               ///< In units of the scale; dimensionless.
  Positives positives = Positives::pool;  ///< live: positives of the queue do not count.
  Interpolation interpolation = Interpolation::higher;  ///< Of Budget::rows.
  Budget budget = Budget::rows;  ///< weight: all Q are weighted, alpha and beta shares of weight.
  Reduction reduction = Reduction::mean;  ///< Over the classes that are valid.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
  std::int64_t ignore_index = default_ignore_index;  ///< The target of rows that do not count.
  PoolOptions pool{};                                ///< The rows that the loss evaluates.
};

/// Values of one class. If the class is not valid, band_negatives is 0 and the others are NaN.
struct PAucDiagnostics {
  double t_alpha = 0;               ///< Q(1 - alpha), the highest score of the band.
  double t_beta = 0;                ///< Q(1 - beta), the lowest one.
  double tau_eff = 0;               ///< Temperature in score units.
  std::int64_t band_negatives = 0;  ///< Independent negatives within [t_beta, t_alpha].
  double variance = 0;              ///< Variance over the terms of the positives.
};

/// One minus the area under the ROC curve between two false positive rates, divided by the width of
/// the band. Q is the quantile of the reference scores: rows with `iid` set, negatives only for
/// Basis::fpr; with Budget::weight, by weight. Thresholds and scale are constants for the gradient.
///
///     t_a = Q(1 - alpha), t_b = Q(1 - beta); scale = Q(0.75) - Q(0.25), or t_a - t_b for band
///     tau = temperature * scale
///     trapezoid: knots f_k from alpha to beta, t_k = Q(1 - f_k), TPR_k = mean over positives i of
///                σ((s_i - t_k) / tau); loss = 1 - sum of w_k TPR_k / (K - 1), w = 1/2 at both ends
///     pairwise:  band = negatives with t_b <= s <= t_a, independent or not;
///                loss = 1 - mean over positives i and band j of σ((s_i - s_j) / tau)
///
/// Narasimhan, Agarwal: "SVM_pAUC^tight", KDD 2013, for the band as an objective; Zhu, Li, Wang,
/// Wu, Yang: "When AUC meets DRO", ICML 2022, for differentiable surrogates. A class is not valid
/// without positives or independent negatives, if the scale is 1e-12 or less, or (pairwise) if the
/// band is empty.
///
/// On the wire: as RecallAtQuantile, with the order statistics of 4 to K + 4 thresholds per class,
/// then one all_reduce. pairwise also gathers the band's scores and reduces one number for each.
class PAucAtBudget final : public RankingLoss {
 public:
  using Options = PAucAtBudgetOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range.
  explicit PAucAtBudget(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

  /// Diagnostics of the last call that succeeded, [C]; empty before. The same on every rank. Valid
  /// until the next call; thread rules are those of the class.
  const std::vector<PAucDiagnostics>& diagnostics() const noexcept { return diagnostics_; }

 private:
  LossResult compute(ProcessGroup* group, const Batch& batch, const CallOptions& options) override;

  Options options_;
  std::vector<PAucDiagnostics> diagnostics_;
};

}  // namespace losses
}  // namespace tutti
