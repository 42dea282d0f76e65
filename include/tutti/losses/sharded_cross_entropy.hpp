#pragma once

#include <cstdint>
#include <optional>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

struct ShardedCrossEntropyOptions {
  double label_smoothing = 0;  ///< e, 0 to 1: the share of a row that is spread over all classes.
  std::int64_t ignore_index = default_ignore_index;
  Reduction reduction = Reduction::mean;
  int threads = 1;  ///< Threads of this rank in a call. Results do not depend on them.
};

/// Cross-entropy of rows whose classes are sharded over the ranks: every rank has all N rows and
/// the logits of its own C_r classes. Known as vocabulary-parallel cross-entropy (Megatron-LM),
/// loss parallel (PyTorch) and Partial FC (insightface). The shards are in rank order: the first
/// class of a rank is the number of classes on lower ranks. With C classes on all ranks, y the
/// target and p the softmax over all C:
///
///     loss = -(1 - e) log p_y - e / C sum over j of log p_j
///
/// The mean divides by the number of rows that are not ignored. With weights, each row's loss and
/// its part of the divisor are multiplied by its weight; a row of weight 0 adds nothing, even if
/// its loss is infinite. If the divisor is 0, loss and gradient are 0. Equals CrossEntropy of the
/// whole logits.
///
/// Every rank gets the same loss and, with Reduction::none, the loss of every row; the gradient is
/// d loss / d logits of its own shard. The gradient is complete, so there is no GradScale:
/// parameters of a shard belong to one rank and are not reduced over this group. docs/losses.md
/// says where a factor W belongs if the rows were gathered from the ranks.
///
/// Loss and gradient have the same bits for any sharding of the classes, on hosts with the same
/// exp and log: sums over classes are exact sums of terms in fixed point. Computed in double, with
/// O(N) memory beside the gradient. On the wire: a message of 32 bytes and the options, then
/// all_reduces of 16 N bytes (max) and of 16 N bytes (sum); with label smoothing of 24 N and 32 N.
/// Logits are not sent. A value; thread rules are those of the group.
class ShardedCrossEntropy {
 public:
  using Options = ShardedCrossEntropyOptions;
  /// @throws Error invalid_argument for an option out of range.
  explicit ShardedCrossEntropy(const Options& options = {});
  const Options& options() const noexcept { return options_; }

  /// @param logits   [N, C_r]; f32, f64, f16 or bf16. C_r may differ between ranks and may be 0.
  ///                 Finite, or -inf for a class that is masked in this row: it has probability and
  ///                 gradient 0. The target of a row must not be masked, and no class if
  ///                 label_smoothing is above 0.
  /// @param targets  i64 [N] or [N, 1]: classes from 0 to C - 1, or ignore_index. The same on every
  ///                 rank.
  /// @param weight   [N]; f64, f32, f16 or bf16; finite, 0 or more. The same values on every rank.
  /// @throws Error on every rank: the codes of RankingLoss; mismatch if the ranks differ in rows,
  ///         targets, weights, options or the dtype of the logits; invalid_argument for targets
  ///         that are not classes and for masked targets.
  LossResult operator()(ProcessGroup& group, const ConstTensorView& logits,
                        const ConstTensorView& targets, const CallOptions& call = {}) const {
    return compute(&group, logits, targets, {}, call);
  }
  LossResult operator()(ProcessGroup& group, const ConstTensorView& logits,
                        const ConstTensorView& targets, const ConstTensorView& weight,
                        const CallOptions& call = {}) const {
    return compute(&group, logits, targets, weight, call);
  }
  /// One process with all classes, without a group.
  LossResult operator()(const ConstTensorView& logits, const ConstTensorView& targets,
                        const std::optional<ConstTensorView>& weight = {}) const {
    return compute(nullptr, logits, targets, weight, {});
  }

 private:
  LossResult compute(ProcessGroup* group, const ConstTensorView& logits,
                     const ConstTensorView& targets, const std::optional<ConstTensorView>& weight,
                     const CallOptions& call) const;

  Options options_;
};

}  // namespace losses
}  // namespace tutti
