#pragma once

#include <cstdint>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Options of SmoothAp. Equal on all ranks, except for `threads`.
struct SmoothApOptions {
  std::int64_t classes = 1;               ///< C. One class is binary; several are one-vs-rest.
  double temperature = 0.01;              ///< In score units.
  Reduction reduction = Reduction::mean;  ///< Over the classes that are valid.
  GradScale grad_scale = GradScale::sum;  ///< sum: for a reducer that averages gradients.
  std::int64_t ignore_index = default_ignore_index;  ///< The target of rows that do not count.
  PoolOptions pool{};                                ///< The rows that the loss evaluates.
  int threads = 1;  ///< Threads of this rank in a call. Results do not depend on them.
};

/// Smooth average precision: 1 - mean over positives k of B_k / A_k, with the soft ranks
///
///     A_k = 1 + sum over j != k of σ((s_j - s_k) / t)      B_k the same over positives j
///
/// over the rows of all ranks, for each class, in double; t is the temperature. Brown, Xie,
/// Kalogeiton, Zisserman: "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV
/// 2020, equation 7. A class is not valid without positives or without other rows. Weights of the
/// rows make it the weighted mean over k.
///
/// Ranks share the work. Time is about linear in the rows M (docs/losses.md); memory is O(M C).
/// On the wire, each rank sends its rows (logits, targets, weights if given) to all ranks, then 24
/// bytes for each positive of its share. If rows are split unevenly, it also sends 8 C bytes for
/// each row that it computed for another rank.
class SmoothAp final : public RankingLoss {
 public:
  using Options = SmoothApOptions;  ///< Each loss has this name.
  /// @throws Error invalid_argument for an option out of range.
  explicit SmoothAp(const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

 private:
  LossResult compute(ProcessGroup* group, const Batch& batch, const CallOptions& options) override;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
