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
  std::size_t id = 0;      ///< The parameter's place in the list of the reducer.
  std::int64_t first = 0;  ///< First element within the parameter.
  std::int64_t count = 0;  ///< Elements.
  std::int64_t state_first =
      0;  ///< First element of the optimizer's state, which has state_size().
};

/// Divides the optimizer's state by W (ZeRO stage 1): each rank updates its share of the
/// parameters. The gradients of a bucket go through reduce_scatter instead of all_reduce, and its
/// updated parameters through all_gather: as many bytes in all.
///
///     GradientReducer reducer(group, parameters, options);
///     ShardedUpdate sharded(reducer);
///     for each batch:
///       backward with reducer.mark_ready(); reducer.finish();
///       sharded.step(update);   // instead of the optimizer's step on all parameters
///
/// With ReducerOptions::order_fixed parameters have the same bits as without shards. Otherwise
/// backends other than "local" may add in another order than their all_reduce does.
///
/// Gradients are reduced for this rank's shards only; what finish() writes elsewhere is
/// unspecified. After step() the buckets hold parameters: gradients in their buckets are written
/// anew in each step, not added to. Every Parameter needs `data`.
///
/// Sets the reducer's hook: set_hook() ends the sharding. The destructor gives back all_reduce; as
/// set_hook(), on all ranks in the same step. The reducer outlives it. The thread rules are the
/// reducer's. A resource type: neither copied nor moved.
class ShardedUpdate {
 public:
  /// Updates elements in place.
  /// @param shard      which elements they are.
  /// @param parameter  [count] of the parameter.
  /// @param gradient   [count], reduced and divided.
  using Update = std::function<void(const Shard& shard, const TensorView& parameter,
                                    const ConstTensorView& gradient)>;

  /// Communicates nothing. @throws Error invalid_argument for a parameter without data, and within
  /// a step.
  explicit ShardedUpdate(GradientReducer& reducer);
  ShardedUpdate(const ShardedUpdate&) = delete;
  ShardedUpdate& operator=(const ShardedUpdate&) = delete;
  ~ShardedUpdate();

  /// Collective, after each finish() or step_empty(). Calls `update` for each shard of this rank,
  /// the first bucket first; buckets travel while later ones are updated. On the wire: (W - 1) / W
  /// of the parameters per rank.
  /// @param stream  on a device: that of the marks. `update` and the copies are queued on it.
  /// @throws Error invalid_argument on every rank without a step since the last call. What `update`
  ///         throws aborts the group.
  void step(const Update& update, Stream stream = {});

  /// In the order of state_first. Constant from the first step() on, and empty before.
  std::span<const Shard> shards() const noexcept;
  /// Elements of this rank, for the optimizer to allocate in the first update: about those of all
  /// parameters / W. Ranks have equal parts of each bucket, but for 64 bytes, padding included.
  std::int64_t state_size() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // Shared with the hook.
};

}  // namespace ddp
}  // namespace tutti
