#pragma once

#include <tutti/losses/features.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of SupCon. Equal on all ranks, except for threads and tiles of `engine`.
struct SupConOptions {
  double temperature = 0.1;               ///< logit_scale() is 1 / temperature: 1e-6 to 1e6.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
  FeatureEngine engine{};                 ///< Threads, tiles and precision of a call.
};

/// The supervised contrastive loss: with logits x_ij = anchor_i . anchor_j / temperature over the
/// rows of all ranks, the mean over the rows i that have positives (other rows P_i with its label)
///
///     mean over p in P_i of (log of the sum over j != i of exp(x_ij)) - x_ip
///
/// Khosla et al.: "Supervised Contrastive Learning", NeurIPS 2020, equation 2, without its factor
/// of temperatures. With two rows for each label it is NT-Xent of SimCLR (Chen et al., ICML 2020,
/// equation 1). Weights make it the weighted mean over i. Without rows that have positives the loss
/// is 0.
///
/// Work: 6 N^2 D / W flops a rank and 2 exponentials for each pair (3 if the log-sum-exps of rows
/// differ by more than 20). Wire and memory: FeatureLoss.
class SupCon final : public FeatureLoss {
 public:
  using Options = SupConOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range.
  explicit SupCon(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

 private:
  FeatureResult compute(ProcessGroup* group, const FeatureBatch& batch,
                        const CallOptions& options) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
