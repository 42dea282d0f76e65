#pragma once

#include <cstdint>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct CrossEntropyOptions {
  std::int64_t classes = 1;      ///< C; one is binary: a yes or no per row.
  std::vector<double> weight{};  ///< Several classes: of each, [C]; empty: 1.
  double pos_weight = 1;         ///< One class: of rows that are positive.
  double label_smoothing = 0;    ///< 0 to 1: so much of a row belongs to all classes alike.
  std::int64_t ignore_index = default_ignore_index;
  Reduction reduction = Reduction::mean;  ///< Not mean_positive.
  GradScale scale = GradScale::for_mean_reducer;
};

/// Cross-entropy of the rows of all ranks, over what a ranking loss takes, so that it may stand in
/// front of one (WarmUp). With w the weights, e the smoothing and y the target, for several classes
///
///     loss = -(1 - e) w_y log p_y - e / C sum over j of w_j log p_j     p the softmax of a row
///
/// whose mean divides by the sum of w_y; for one class, with y' = (1 - e) y + e / 2 and pos_weight
/// w
///
///     loss = -w y' log σ(z) - (1 - y') log (1 - σ(z))
///
/// whose mean divides by the number of rows. Both are what PyTorch's functions of the name compute
/// for one process. Where there is nothing to divide by, loss and gradient are 0.
///
/// In double; one exchange of a few numbers per call. A value; thread rules are those of the group.
class CrossEntropy {
 public:
  using Options = CrossEntropyOptions;
  /// @throws Error invalid_argument for an option out of range, and for weights of the other kind.
  explicit CrossEntropy(const Options& options = {});
  const Options& options() const noexcept { return options_; }

  /// `batch.iid` and `batch.training` do not matter. Targets of one class are 0 or 1.
  /// @throws Error on every rank, as RankingLoss does.
  LossResult operator()(ProcessGroup* group, const RankingBatch& batch,
                        const CallOptions& call = {}) const;

 private:
  Options options_;
};

}  // namespace losses
}  // namespace tutti
