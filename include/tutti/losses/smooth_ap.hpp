#pragma once

#include <cstdint>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct SmoothApOptions {
  std::int64_t classes = 1;               ///< C; one is binary, more are one-vs-rest.
  double temperature = 0.01;              ///< Score units: how far apart two rows are told apart.
  Reduction reduction = Reduction::mean;  ///< Not mean_positive.
  GradScale scale = GradScale::for_mean_reducer;
  std::int64_t ignore_index = default_ignore_index;
  PoolOptions pool{};
  int threads = 1;  ///< At work on a call of this rank; no number depends on it.
};

/// Smooth average precision: 1 - mean over positives k of B_k / A_k, with the soft ranks
///
///     A_k = 1 + sum over j != k of σ((s_j - s_k) / t)      B_k the same over positives j
///
/// over the rows of all ranks, for each class, in double. Brown, Xie, Kalogeiton, Zisserman:
/// "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, equation 7.
/// A class without positives, or of nothing else, is not valid.
///
/// Ranks share the work; time is about linear in the rows (docs/losses.md), memory O(M C).
/// On the wire, per rank: its rows (logits, targets) to all, then 24 bytes for each of its share of
/// the positives; where rows lie unevenly, 8 C bytes for each row that another rank worked on.
class SmoothAp final : public RankingLoss {
 public:
  using Options = SmoothApOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit SmoothAp(const Options& options = {});
  const Options& options() const noexcept { return options_; }

 private:
  LossResult compute(ProcessGroup* group, const RankingBatch& batch,
                     const CallOptions& call) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
