#pragma once

#include <cstdint>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct SquaredAucOptions {
  std::int64_t classes = 1;  ///< C. One class is binary; several are one-vs-rest.
  double margin = 1;         ///< In score units; finite.
  Reduction reduction = Reduction::mean;
  GradScale grad_scale = GradScale::sum;
  std::int64_t ignore_index = default_ignore_index;
  PoolOptions pool{};
};

/// The pairwise squared loss of the area under the ROC curve, with m the margin:
///
///     loss = mean over positives i and negatives j of (m - (s_i - s_j))^2
///          = (m - (mean of s_i - mean of s_j))^2 + variance of s_i + variance of s_j
///
/// exactly, from the moments of the positives and of the negatives over all ranks, in time linear
/// in the rows. This is not the squared hinge max(0, m - (s_i - s_j))^2, which is no function of
/// moments: pairs that are ordered by more than the margin have a loss here, too. Gao, Jin, Zhu,
/// Zhou: "One-Pass AUC Optimization", ICML 2013; Ying, Wen, Lyu: "Stochastic Online AUC
/// Maximization", NIPS 2016, whose saddle-point problem (also AUCM of LibAUC, without its hinge)
/// has this minimum; here no auxiliary variables are trained.
///
/// Weights of the rows weigh both sides of a pair, as the AUC of metrics does: a pair counts w_i
/// w_j. A class is not valid without positives, without negatives, or if the weights of either are
/// all 0. The temperature of the base class has no effect.
///
/// Moments are relative to a score, so a large offset that all scores share costs no digits. On the
/// wire: as RecallAtQuantile, but without order statistics; then one gather of 56 bytes per class
/// from each rank.
class SquaredAuc final : public RankingLoss {
 public:
  using Options = SquaredAucOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit SquaredAuc(const Options& options = {});
  const Options& options() const noexcept { return options_; }

 private:
  LossResult compute(ProcessGroup* group, const RankingBatch& batch,
                     const CallOptions& call) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
