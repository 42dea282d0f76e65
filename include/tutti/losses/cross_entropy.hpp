#pragma once

#include <cstdint>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of CrossEntropy. Equal on all ranks.
struct CrossEntropyOptions {
  std::int64_t classes = 1;      ///< C. One class is binary: a yes or no per row.
  std::vector<double> weight{};  ///< C > 1: the weight of each class, [C]; empty: 1.
  double pos_weight = 1;         ///< C = 1: the weight of positive rows.
  double label_smoothing = 0;    ///< e, 0 to 1: the share of a row that is spread over all classes.
  std::int64_t ignore_index = default_ignore_index;  ///< The target of rows that do not count.
  Reduction reduction = Reduction::mean;             ///< Over the rows that count.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
};

/// Cross-entropy over the rows of all ranks. Takes the batch of a ranking loss, so that WarmUp can
/// run it first. For several classes, with w the weights, e the label smoothing, y the target and p
/// the softmax of a row:
///
///     loss = -(1 - e) w_y log p_y - e / C sum over j of w_j log p_j
///
/// The mean divides by the sum of w_y. For one class, with y' = (1 - e) y + e / 2 and w pos_weight:
///
///     loss = -w y' log σ(z) - (1 - y') log (1 - σ(z))
///
/// The mean divides by the number of rows. On one process they equal PyTorch's cross_entropy and,
/// with the targets y', binary_cross_entropy_with_logits. If the divisor is 0, loss and gradient
/// are 0. With weights of the rows (Batch::weight), each row's loss and its part of the
/// divisor are multiplied by its weight.
///
/// Computed in double. On the wire: one exchange of a few numbers per call. A value; thread rules
/// are those of the group.
class CrossEntropy {
 public:
  using Options = CrossEntropyOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range, for `weight` with one class, and
  ///         for `pos_weight` with several.
  explicit CrossEntropy(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

  /// Only logits, targets and weights of the batch are read. For one class the targets are 0 or 1.
  /// @throws Error on every rank, with the codes of RankingLoss.
  LossResult operator()(ProcessGroup& group, const Batch& batch,
                        const CallOptions& options = {}) const {
    return compute(&group, batch, options);
  }
  /// One process, without a group.
  LossResult operator()(const Batch& batch) const { return compute(nullptr, batch, {}); }

 private:
  LossResult compute(ProcessGroup* group, const Batch& batch, const CallOptions& options) const;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
