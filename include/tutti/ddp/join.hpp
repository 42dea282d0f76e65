#pragma once

#include <chrono>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Equal on all ranks.
struct JoinOptions {
  /// Gradients are divided by W to the end, so that every batch weighs the same; the divisor of the
  /// reducer is left as it is. Without it by the number of ranks with a batch, and by W after the
  /// end: late batches weigh more.
  bool divide_by_initial_world_size = true;
  /// next() throws on every rank once a rank has no batch left while another one has.
  bool throw_on_early_termination = false;
  /// next() makes the step of a rank without a batch. Without it the rank does that itself, behind
  /// the collectives that its peers make before their gradients: a loss over zero rows, then
  /// GradientReducer::step_empty().
  bool make_empty_steps = true;
  std::chrono::nanoseconds timeout{};  ///< Of the exchange; 0: the group's.
};

/// Lets ranks that run out of batches early stay in step with the others. One object per pass over
/// the data:
///
///     Join join(reducer);
///     while (join.next(batch != end)) {
///       if (batch != end) { forward; backward with mark_ready(); reducer.finish(); ++batch; }
///       optimizer step, with reducer.gradient(id) on a rank without a batch
///     }
///
/// All ranks make the optimizer's step, so their parameters stay equal. A rank without a batch has
/// the reduced gradients in the buckets only.
///
/// With a loss over the whole group (<tutti/losses/...>) a rank without a batch contributes zero
/// rows: the loss and its gradients are those of the rows that there are, and the divisor stays.
///
/// On the wire: 8 bytes to reduce per next(), for which the host waits. The thread rules are the
/// reducer's, which must outlive it. A value type.
class Join {
 public:
  /// Communicates nothing. @throws Error invalid_argument for a reducer without parameters.
  explicit Join(GradientReducer& reducer, const JoinOptions& options = {});

  /// Collective, between steps. False on every rank once no rank has a batch. True: a step is made,
  /// and a rank without a batch has made it.
  /// @throws Error mismatch on every rank for throw_on_early_termination, with the ranks; otherwise
  ///         as GradientReducer::step_empty().
  bool next(bool has_batch);
  /// Ranks with a batch in this step: after next() has given true.
  int ranks_with_batch() const noexcept { return with_batch_; }

 private:
  GradientReducer* reducer_;
  ProcessGroup* group_;
  JoinOptions options_;
  int with_batch_ = 0;
};

}  // namespace ddp
}  // namespace tutti
