#pragma once

#include <cstdint>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct RecallAtQuantileOptions {
  std::int64_t classes = 1;  ///< C; one is binary, more are one-vs-rest.
  double quantile = 0.005;   ///< Which part of the rows may be flagged: 0 to 1, both excluded.
  double temperature = 0.01;
  Interpolation interpolation = Interpolation::higher;
  Reduction reduction = Reduction::mean;  ///< Not mean_positive.
  GradScale scale = GradScale::for_mean_reducer;
  std::int64_t ignore_index = default_ignore_index;
  PoolOptions pool{};
};

/// How many positives are missed when the highest-scored part of all rows is flagged:
///
///     θ = the (1 - quantile) quantile of the scores of all rows, a constant for the gradient
///     loss = 1 - mean over positives i of σ((s_i - θ) / temperature)
///
/// A class without positives is not valid. θ is exact, found without gathering the scores: their
/// bits are counted byte by byte, from the highest (radix select). Its place in the order is the
/// one of torch.quantile (2.15), for any number of rows and for half types too.
///
/// On the wire: while rows are 4 KiB or less on every rank, these, in one message to all. Otherwise
/// a message to agree, then all_reduces of a few numbers and of 2 KiB per class and order
/// statistic, 4 of them (f64: 8); independent of the rows.
class RecallAtQuantile final : public RankingLoss {
 public:
  using Options = RecallAtQuantileOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit RecallAtQuantile(const Options& options = {});
  const Options& options() const noexcept { return options_; }

 private:
  LossResult compute(ProcessGroup* group, const RankingBatch& batch,
                     const CallOptions& call) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
