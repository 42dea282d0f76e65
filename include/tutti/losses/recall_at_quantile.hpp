#pragma once

#include <cstdint>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of RecallAtQuantile. Equal on all ranks.
struct RecallAtQuantileOptions {
  std::int64_t classes = 1;   ///< C. One class is binary; several are one-vs-rest.
  double quantile = 0.005;    ///< The share of the rows that may be flagged; above 0, below 1.
  double temperature = 0.01;  ///< In score units.
  Interpolation interpolation = Interpolation::higher;  ///< Of Budget::rows.
  Budget budget = Budget::rows;  ///< weight: the flagged rows have this share of all weight.
  Reduction reduction = Reduction::mean;  ///< Over the classes that are valid.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
  std::int64_t ignore_index = default_ignore_index;  ///< The target of rows that do not count.
  PoolOptions pool{};                                ///< The rows that the loss evaluates.
};

/// The smoothed share of positives that are missed if the highest-scored fraction of all rows is
/// flagged:
///
///     θ = the (1 - quantile) quantile of the scores of all rows, a constant for the gradient
///     loss = 1 - mean over positives i of σ((s_i - θ) / temperature)
///
/// A class without positives is not valid. θ is exact. It is found without gathering the scores, by
/// counting the bytes of their bit patterns from the highest (radix select). Its position among the
/// sorted scores is that of torch.quantile 2.15, for any number of rows and for half types.
///
/// On the wire: if every rank has at most 4 KiB of rows, one message sends them to all ranks.
/// Otherwise one message to agree on this, then all_reduces of a few numbers, and 4 all_reduces
/// (f64: 8) of 2 KiB per class and order statistic. The bytes do not depend on the number of rows.
class RecallAtQuantile final : public RankingLoss {
 public:
  using Options = RecallAtQuantileOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range.
  explicit RecallAtQuantile(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

 private:
  LossResult compute(ProcessGroup* group, const Batch& batch, const CallOptions& options) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
