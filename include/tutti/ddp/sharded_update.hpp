#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Consecutive elements of one parameter that this rank updates.
struct Shard {
  std::size_t id = 0;      ///< The parameter's index in the reducer's list.
  std::int64_t first = 0;  ///< First element within the parameter.
  std::int64_t count = 0;  ///< Elements.
  std::int64_t state_first =
      0;  ///< First element in the optimizer's state of state_size() elements.
};

/// Divides the optimizer's state by W (ZeRO stage 1): each rank updates its share of the
/// parameters. A bucket's gradients go through reduce_scatter instead of all_reduce, and its
/// updated parameters through all_gather: the same number of bytes in total.
///
///     GradientReducer reducer(group, parameters, options);
///     ShardedUpdate sharded(reducer);
///     for each batch:
///       backward with reducer.mark_ready(); reducer.finish();
///       sharded.step(update);   // instead of the optimizer's step on all parameters
///
/// With ReducerOptions::order_fixed, parameters have the same bits as without shards. Otherwise
/// backends other than "local" may add in a different order from their all_reduce.
///
/// Gradients are reduced for this rank's shards only; after finish() all others are unspecified.
/// After step() the buckets hold parameters. So gradients that live in buckets must be overwritten
/// in each step, not added to. Every Parameter needs `data`.
///
/// Sets the reducer's hook; a later set_hook() ends the sharding. The destructor restores
/// all_reduce_hook: like set_hook(), it runs on all ranks in the same step. Destroy it before
/// GradientReducer::set_group() and make a new one, with other shards and a new state. The reducer
/// must outlive the ShardedUpdate. Thread rules are those of the reducer. A resource type: neither
/// copied nor moved.
class ShardedUpdate {
 public:
  /// Updates elements in place.
  /// @param shard      the elements to update.
  /// @param parameter  [count] of the parameter.
  /// @param gradient   [count], reduced and divided.
  using Update = std::function<void(const Shard& shard, const TensorView& parameter,
                                    const ConstTensorView& gradient)>;

  /// Does not communicate. @throws Error invalid_argument for a parameter without data, and within
  /// a step.
  explicit ShardedUpdate(GradientReducer& reducer);
  ShardedUpdate(const ShardedUpdate&) = delete;
  ShardedUpdate& operator=(const ShardedUpdate&) = delete;
  ~ShardedUpdate();

  /// Collective, after each finish() or step_empty(). Calls `update` for each shard of this rank,
  /// the first bucket first; a bucket is sent while later ones are updated. On the wire: (W - 1) /
  /// W of the parameters per rank.
  /// @param stream  on a device: the producer stream of the marks. `update` and the copies are
  ///                queued on it.
  /// @throws Error invalid_argument, before it communicates, if there was no step since the last
  ///         call or GradientReducer::is_reduced() is false. An exception of `update` aborts the
  ///         group. After an error of the group this rank's shards are updated and those of other
  ///         ranks may not be: repeat the step from a copy of all parameters, or load a checkpoint.
  void step(const Update& update, Stream stream = {});

  /// This rank's shards by state_first. Empty before the first step(), constant afterwards.
  std::span<const Shard> shards() const noexcept;
  /// Number of this rank's elements, for which the optimizer allocates state in the first update:
  /// about 1 / W of all. Ranks' shares of a bucket, padding included, differ by at most 64 bytes.
  std::int64_t state_size() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // Shared with the hook.
};

}  // namespace ddp
}  // namespace tutti
