#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/ddp/bucket.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// The state of post_local_sgd_hook(): the step. With ranks that have left or joined, make a new
/// one over their sub-group and load() rank 0's save(). Move-only.
class PostLocalSgdState final : public HookState {
 public:
  /// @param start_step  earlier steps are reduced over all ranks; equal on all ranks.
  /// @param sub_group   later steps are reduced over it, for example the ranks of one host. Null:
  ///                    each rank keeps its own gradients. Made by ProcessGroup::split.
  /// @throws Error invalid_argument.
  explicit PostLocalSgdState(std::int64_t start_step = 1000, ProcessGroup* sub_group = nullptr);

  std::string save() const override;  ///< Between steps.
  void load(std::string_view state) override;
  std::int64_t step() const noexcept { return step_; }  ///< Steps so far.

 private:
  friend Work post_local_sgd_hook(PostLocalSgdState& state, Bucket& bucket);
  std::int64_t start_step_;
  std::optional<ProcessGroup> sub_group_;
  std::int64_t step_ = 0;
};

/// Reduces over all ranks, and from start_step on over the sub-group: local SGD, like torch's
/// post_localSGD_hook (Lin et al.: "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020). From
/// then on the ranks' parameters differ; PeriodicModelAverager averages them. A mean over the ranks
/// becomes a mean over the sub-group; with a divisor other than W the result is that mean times W /
/// divisor.
/// On the wire: one all_reduce of the bucket, or nothing. `state` must outlive the Work.
/// @throws Error unsupported for gradients on a device and complex gradients, if there is no
///         sub-group and the divisor is not W.
Work post_local_sgd_hook(PostLocalSgdState& state, Bucket& bucket);
CommHook post_local_sgd_hook(std::shared_ptr<PostLocalSgdState> state);  ///< Keeps `state`.

/// Averages parameters over the ranks of a group every `period` steps, like torch's averager of
/// this name. Call it on all ranks of the group after each step of the optimizer. For another group
/// make a new one and set_step(). Move-only.
class PeriodicModelAverager {
 public:
  /// @param warmup_steps  number of first steps without averaging; the next step averages, as in
  ///                      torch. Use the start_step of PostLocalSgdState.
  /// @throws Error invalid_argument.
  PeriodicModelAverager(ProcessGroup& group, std::int64_t period, std::int64_t warmup_steps = 0);

  /// Collective in the steps that average; the same arrays on all ranks, floats or complex numbers
  /// [...] on the group's device. Returns whether this step averages. Arrays below 1 MiB travel
  /// together. On the wire: an all_reduce of each MiB of small arrays, and of each larger array.
  /// Memory: 1 MiB, allocated in the first step that averages. The host waits for small arrays on a
  /// device. @throws Error.
  bool average(std::span<const TensorView> parameters, const CallOptions& options = {});

  std::int64_t step() const noexcept { return step_; }  ///< Calls of average() so far.
  /// For checkpoints. @throws Error invalid_argument for a negative step.
  void set_step(std::int64_t step);

 private:
  ProcessGroup group_;
  std::int64_t period_;
  std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
  Tensor together_;
};

}  // namespace ddp
}  // namespace tutti
