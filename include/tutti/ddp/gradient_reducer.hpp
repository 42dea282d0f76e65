#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/ddp/bucket.hpp>
#include <tutti/log.hpp>
#include <tutti/process_group.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// A parameter of the model. Its id is its place in the list.
struct Parameter {
  std::string name;  ///< Compared between ranks, and shown in errors.
  /// Dtype and shape of parameter and gradient, on the group's device: floats or complex numbers.
  /// With `data`, the constructor writes rank 0's values into it.
  TensorView value;
};

/// Equal on all ranks, except for `logger`.
struct ReducerOptions {
  std::int64_t first_bucket_cap = 1
                                  << 20;  ///< Bytes. Small, so that the first bucket is full soon.
  std::int64_t bucket_cap = 25 << 20;     ///< Bytes. A larger parameter has a bucket of its own.
  /// Ranks may lack gradients of different parameters: these ranks contribute zeros. On the wire: 8
  /// bytes per parameter and step.
  bool find_unused_parameters = false;
  /// Gradients live in the buckets: mark_ready() accepts gradient(id) only, and nothing is copied.
  bool gradient_as_bucket_view = false;
  /// After the first step gradients are put into buckets in the order in which they arrived on rank
  /// 0. Without effect with find_unused_parameters.
  bool rebuild_buckets = true;
  /// finish() compares the ranks: 24 bytes, behind the last bucket; the host waits for them.
  /// Without it a rank that lacks a gradient aborts the group, and finish() does not wait for
  /// devices.
  bool check_steps = true;
  double divisor = 0;                  ///< Of the sum over ranks. 0: W, the mean; 1: the sum.
  bool order_fixed = false;            ///< Of the reductions: CallOptions::order_fixed.
  std::chrono::nanoseconds timeout{};  ///< Of each call; 0: the group's.
  Logger logger{};                     ///< Empty: default_logger().
};

/// Reduces gradients over the ranks of a group while backward still runs, as torch's
/// DistributedDataParallel. The framework keeps parameters, gradients and backward:
///
///     GradientReducer reducer(group, parameters);   // ranks start with rank 0's values
///     for each batch:
///       backward, which calls reducer.mark_ready(id, gradient) for each gradient
///       reducer.finish();                            // gradients are now means over the ranks
///       optimizer step
///
/// A bucket is reduced as soon as its gradients are there and the buckets before it are launched.
/// Memory: one copy of the gradients, in the group's registrable memory, and for a moment a second
/// one at the end of the first step. No allocation after the second step. Other calls on the group,
/// between the first mark of a step and finish(), must come in the same order on all ranks: give
/// the reducer a group of its own (ProcessGroup::split).
///
/// Errors: what a rank does wrong (a gradient twice, missing, or of another shape) ends the step on
/// all ranks with an Error that names rank and parameter. Peers have code mismatch, from finish().
/// The group stays usable, gradients of that step are unspecified, and the next mark_ready() begins
/// a new step; finish() right after a mark that threw throws the same. Errors of the group
/// (peer_lost, timeout) and of hooks break the group.
///
/// Thread rules: marks from any threads, at any time within backward; the rest from one thread,
/// with no mark under way. The group must outlive the reducer. A resource type: neither copied nor
/// moved.
class GradientReducer {
 public:
  /// Collective. Compares parameters, buffers and options (one small message to each rank), and
  /// broadcasts rank 0's values. @throws Error invalid_argument; mismatch on every rank, with the
  /// first difference.
  explicit GradientReducer(ProcessGroup& group, std::vector<Parameter> parameters,
                           const ReducerOptions& options = {}, std::vector<Parameter> buffers = {});
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  /// Communicates nothing. Between a mark and finish() it aborts the group.
  ~GradientReducer();

  /// The gradient of `id` is computed: [...] of the parameter's shape. It is copied into its bucket
  /// unless it lives there; finish() writes the result back, so it must live until then.
  /// @param producer  on a device: the stream that computes it, and on which the result is usable.
  ///                  Gradients of one bucket from several streams cost a wait of the host.
  void mark_ready(std::size_t id, const TensorView& gradient, Stream producer = {});
  /// This rank has no gradient of `id` in this step and contributes zeros. Without
  /// find_unused_parameters the same parameters must be unused on all ranks.
  void mark_unused(std::size_t id);
  /// Collective. Waits until all buckets are reduced, and writes the results to the gradients. With
  /// find_unused_parameters, parameters without a mark are unused.
  void finish();
  /// A whole step of a rank without a batch: zeros for all gradients, whatever the options say.
  void step_empty();

  /// While it lives, marks and finish() do nothing: the framework accumulates gradients of
  /// micro-batches, and marks the sums in the last one, outside of the scope.
  class [[nodiscard]] NoSync {
   public:
    NoSync(NoSync&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync() {
      if (count_ != nullptr) --*count_;
    }

   private:
    friend class GradientReducer;
    explicit NoSync(int& count) noexcept : count_(&count) { ++count; }
    int* count_;
  };
  /// @throws Error invalid_argument between a mark and finish().
  NoSync no_sync();

  /// Collective. Writes rank 0's buffers to those of all ranks: before each forward, if at all.
  void broadcast_buffers();

  /// Replaces the reduction of buckets: all_reduce_hook. The hook divides by Bucket::divisor(). A
  /// null hook changes nothing. The wrapper, if any, is applied, and rank 0 logs that. The same on
  /// all ranks, between steps. @throws Error invalid_argument within a step.
  void set_hook(CommHook hook, const HookWrapper& wrapper = {});
  /// As ReducerOptions::divisor, from the next step on; the same on all ranks.
  void set_divisor(double divisor);

  /// The place of a gradient in its bucket; the reduced one after finish(). The first finish() may
  /// move it, with its content.
  TensorView gradient(std::size_t id) const;
  /// Whether any rank had a gradient in the last step.
  bool is_used(std::size_t id) const;
  std::span<const Parameter> parameters() const noexcept;
  std::span<const Bucket> buckets() const noexcept;  ///< Valid until the first finish() has ended.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
}  // namespace tutti
