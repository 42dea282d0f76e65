#pragma once

#include <tutti/losses/features.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of SigLip. Equal on all ranks, except for threads and tiles of `engine`.
struct SigLipOptions {
  double logit_scale = 10;                ///< 1e-6 to 1e6.
  double bias = -10;                      ///< -1e30 to 1e30. SigLIP begins with 10 and -10.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
  FeatureEngine engine{};                 ///< Threads, tiles and precision of a call.
};

/// The sigmoid loss of SigLIP: with logits x_ij = logit_scale (anchor_i . candidate_j) + bias over
/// the rows of all ranks, the mean over i of
///
///     sum over j of log(1 + exp(-y_ij x_ij)),    y_ij = 1 if i = j, otherwise -1
///
/// Zhai, Mustafa, Kolesnikov, Beyer: "Sigmoid Loss for Language Image Pre-Training", ICCV 2023,
/// algorithm 1. It equals the mean over i of half the sum of row i and column i; so weights of rows
/// apply to both.
///
/// Work: one pass, 8 N^2 D / W flops a rank and 2 exponentials for each pair. Wire and memory:
/// FeatureLoss.
class SigLip final : public FeatureLoss {
 public:
  using Options = SigLipOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range.
  explicit SigLip(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

 private:
  FeatureResult compute(ProcessGroup* group, const FeatureBatch& batch,
                        const CallOptions& options) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
