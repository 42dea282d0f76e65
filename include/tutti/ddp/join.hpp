#pragma once

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Options of Join. Equal on all ranks.
struct JoinOptions {
  /// True: the reducer's divisor (by default W) is unchanged, so every batch has the same weight.
  /// False: the divisor is the number of ranks with a batch, and W again after the end: late
  /// batches have more weight.
  bool divide_by_initial_world_size = true;
  /// next() throws on every rank once one rank has no batch left and another rank has one.
  bool throw_on_early_termination = false;
  /// True: next() makes the step of a rank without a batch. False: that rank makes the collectives
  /// that its peers make before their gradients (a loss over zero rows), then calls
  /// GradientReducer::step_empty().
  bool make_empty_steps = true;
};

/// Keeps ranks that run out of batches early in step with the others. One object per pass over the
/// data:
///
///     Join join(reducer);
///     while (join.next(batch != end)) {
///       if (batch != end) { forward; backward with mark_ready(); reducer.finish(); ++batch; }
///       optimizer step, with reducer.gradient(id) on a rank without a batch
///     }
///
/// All ranks make the optimizer's step, so their parameters stay equal. On a rank without a batch
/// only the buckets hold the reduced gradients.
///
/// With a loss over the whole group (<tutti/losses/...>) a rank without a batch contributes zero
/// rows: the loss and its gradients are over the rows of the other ranks, and the divisor is
/// unchanged.
///
/// On the wire: an all_reduce of 8 bytes per next(), for which the host waits. Thread rules are
/// those of the reducer, which must outlive the Join. After GradientReducer::set_group() make a new
/// one. Move-only.
class Join {
 public:
  /// Does not communicate. @throws Error invalid_argument for a reducer without parameters.
  explicit Join(GradientReducer& reducer, const JoinOptions& options = {});

  /// Collective, between steps. False on every rank once no rank has a batch. True: ranks with a
  /// batch make a step; for ranks without a batch next() has made it.
  /// @throws Error mismatch on every rank for throw_on_early_termination, whose text lists the
  ///         ranks; otherwise as GradientReducer::step_empty().
  bool next(bool has_batch, const CallOptions& options = {});
  /// Number of ranks with a batch in this step; valid after next() returned true.
  int ranks_with_batch() const noexcept { return with_batch_; }

 private:
  GradientReducer* reducer_;
  ProcessGroup group_;
  JoinOptions options_;
  int with_batch_ = 0;
};

}  // namespace ddp
}  // namespace tutti
