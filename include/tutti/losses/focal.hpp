#pragma once

#include <cstdint>
#include <vector>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// Focal losses: cross-entropy with less weight on terms that are already predicted well. Lin,
// Goyal, Girshick, He, Dollár: "Focal Loss for Dense Object Detection", ICCV 2017, equations 4 and
// 5. Computed in double. On the wire: one exchange of a few numbers per call. Divisors are counted
// over all ranks; a divisor of 0 counts as 1.
//
// The losses are values; the group's thread rules apply. Calls throw on every rank, with the
// codes of RankingLoss.

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of SigmoidFocal. Equal on all ranks.
struct SigmoidFocalOptions {
  double alpha =
      0.25;          ///< Weight of positive elements; 1 - alpha weighs negatives. -1: no weights.
  double gamma = 2;  ///< 0 is binary cross-entropy.
  Reduction reduction = Reduction::mean;  ///< Over the elements.
  /// Divides the sum over all elements by the number of positive elements (at least 1) instead of
  /// by the number of elements. Requires Reduction::mean; sum and none divide by nothing.
  bool normalize_by_positives = false;
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
};

/// One binary decision per logit. With z the logit, y the target and p = σ(z):
///
///     p_t = p y + (1 - p) (1 - y);  alpha_t = alpha y + (1 - alpha) (1 - y), or 1 if alpha is -1
///     loss = alpha_t (1 - p_t)^gamma (softplus(z) - z y)
class SigmoidFocal {
 public:
  using Options = SigmoidFocalOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range, and for normalize_by_positives with
  ///         a reduction other than mean.
  explicit SigmoidFocal(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

  /// Of `batch`, `logits` have any shape, of which ranks may differ in rows; `targets` the same
  /// shape and dtype, 0 to 1, and are positive above 0. `weight`, of each element, has as many
  /// dimensions; the first is that of the logits, the others are too or are 1. The rest is ignored.
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

/// Options of SoftmaxFocal. Equal on all ranks.
struct SoftmaxFocalOptions {
  std::vector<double> alpha{};  ///< Weight of each class, [C]; empty: 1.
  double gamma = 2;             ///< 0 is cross-entropy.
  double label_smoothing = 0;   ///< e, 0 to 1.
  std::int64_t background = 0;  ///< The class that normalize_by_positives does not count.
  std::int64_t ignore_index = default_ignore_index;  ///< The target of rows that do not count.
  Reduction reduction = Reduction::mean;             ///< Over the rows that count.
  /// Divides the sum over all rows by the number of rows of other classes than `background` (at
  /// least 1) instead of by the number of rows. Requires Reduction::mean.
  bool normalize_by_positives = false;
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
};

/// One class per row. With p the softmax over classes, y the target and e the label smoothing:
///
///     loss = alpha_y (1 - p_y)^gamma (-(1 - e) log p_y - e / C sum over j of log p_j)
class SoftmaxFocal {
 public:
  using Options = SoftmaxFocalOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument as SigmoidFocal does.
  explicit SoftmaxFocal(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

  /// Of `batch`, `logits` are [N, C, *], `targets` i64 [N, *], 0 to C - 1 or ignore_index, and
  /// `weight` [N, *]. The rest is ignored.
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
