#pragma once

#include <cstdint>
#include <vector>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// Focal losses: cross-entropy that looks away from what is right already. Lin, Goyal, Girshick, He,
// Dollár: "Focal Loss for Dense Object Detection", ICCV 2017, equations 4 and 5. What is divided by
// is counted over all ranks. In double; one exchange of a few numbers per call.

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct SigmoidFocalOptions {
  double alpha = 0.25;  ///< Weight of positive elements, 1 - alpha of the others; -1: none.
  double gamma = 2;     ///< 0 is binary cross-entropy.
  Reduction reduction = Reduction::mean;
  GradScale scale = GradScale::for_mean_reducer;
};

/// Every logit is a yes or no of its own. With p = σ(z), p_t = p y + (1 - p) (1 - y):
///
///     loss = alpha_t (1 - p_t)^gamma (softplus(z) - z y)
///
/// A value; thread rules are those of the group.
class SigmoidFocal {
 public:
  using Options = SigmoidFocalOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit SigmoidFocal(const Options& options = {});
  const Options& options() const noexcept { return options_; }

  /// @param logits   any shape, f32, f64, f16 or bf16, finite; rows may differ between ranks. On
  ///                 the host or the group's device, like the targets.
  /// @param targets  the same shape and dtype, 0 to 1. Positive is what is above 0.
  /// @throws Error on every rank, as SmoothAp does.
  LossResult operator()(ProcessGroup* group, const ConstTensorView& logits,
                        const ConstTensorView& targets, const CallOptions& call = {}) const;

 private:
  Options options_;
};

struct SoftmaxFocalOptions {
  std::vector<double> alpha{};  ///< Weight of each class, [C]; empty: 1.
  double gamma = 2;             ///< 0 is cross-entropy.
  double label_smoothing = 0;   ///< 0 to 1.
  std::int64_t background = 0;  ///< The class that mean_positive does not count.
  std::int64_t ignore_index = default_ignore_index;
  Reduction reduction = Reduction::mean;
  GradScale scale = GradScale::for_mean_reducer;
};

/// One class per row. With p the softmax over classes and y the target:
///
///     loss = alpha_y (1 - p_y)^gamma (-(1 - e) log p_y - e / C sum over j of log p_j)
class SoftmaxFocal {
 public:
  using Options = SoftmaxFocalOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit SoftmaxFocal(const Options& options = {});
  const Options& options() const noexcept { return options_; }

  /// @param logits   [N, C, *], f32, f64, f16 or bf16, finite. On the host or the group's device,
  ///                 like the targets.
  /// @param targets  i64 [N, *]: 0 to C - 1, or ignore_index.
  LossResult operator()(ProcessGroup* group, const ConstTensorView& logits,
                        const ConstTensorView& targets, const CallOptions& call = {}) const;

 private:
  Options options_;
};

}  // namespace losses
}  // namespace tutti
