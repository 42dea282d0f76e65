#pragma once

#include <tutti/losses/features.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of Clip. Equal on all ranks, except for threads and tiles of `engine`.
struct ClipOptions {
  double logit_scale = 1;      ///< 1 / temperature; 1e-6 to 1e6. CLIP begins with 1 / 0.07.
  double label_smoothing = 0;  ///< 0 to 1; the part of each target that all columns share.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
  FeatureEngine engine{};                 ///< Threads, tiles and precision of a call.
};

/// The contrastive loss of CLIP (InfoNCE in both directions): with logits x_ij = logit_scale
/// (anchor_i . candidate_j) over the rows of all ranks, the mean over i of
///
///     (-log softmax over j of x_ij at j = i, and the same over the anchors x_ji) / 2
///
/// Radford et al.: "Learning Transferable Visual Models From Natural Language Supervision", ICML
/// 2021, figure 3. Weights make it the weighted mean over i. Smoothing is that of torch's
/// cross_entropy.
///
/// Work: 12 N^2 D / W flops a rank, and 4 exponentials for each pair (6 if the log-sum-exps of rows
/// differ by more than 20). Wire and memory: FeatureLoss.
class Clip final : public FeatureLoss {
 public:
  using Options = ClipOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range.
  explicit Clip(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

 private:
  FeatureResult compute(ProcessGroup* group, const FeatureBatch& batch,
                        const CallOptions& options) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
