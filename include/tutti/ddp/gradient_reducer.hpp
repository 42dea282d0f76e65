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

/// A parameter of the model. Its id is its index in the list.
struct Parameter {
  std::string name;  ///< Compared between ranks, and shown in errors.
  /// Dtype (float or complex), shape and device of the parameter and its gradient. The device is
  /// the group's. If `data` is set, the constructor writes rank 0's values into it.
  TensorView value;
};

/// Options of GradientReducer. Equal on all ranks, except for `logger`; ranks agree on whether
/// there is `arithmetic`.
struct ReducerOptions {
  std::int64_t first_bucket_cap = 1
                                  << 20;  ///< Bytes. Small, so that the first bucket is full soon.
  std::int64_t bucket_cap = 25 << 20;     ///< Bytes. A larger parameter gets its own bucket.
  /// Allows a parameter without a gradient on some ranks: they contribute zeros. On the wire: 8
  /// bytes per parameter and step.
  bool find_unused_parameters = false;
  /// Gradients live in the buckets: mark_ready() accepts gradient(id) only, and nothing is copied.
  bool gradient_as_bucket_view = false;
  /// After the first step, puts gradients into buckets in the order in which they arrived on rank
  /// 0. Ignored with find_unused_parameters.
  bool rebuild_buckets = true;
  /// finish() compares the ranks' steps: 24 bytes after the last bucket, for which the host waits.
  /// False: a rank that lacks a gradient aborts the group, and finish() does not wait for devices,
  /// except for buckets with a gradient that this rank reported as unused.
  bool check_steps = true;
  double divisor = 0;  ///< Divisor of the sum over ranks. 0: W, the mean; 1: the sum.
  /// Steps end with finish(rows): gradients are means over all rows, whatever the divisor. For
  /// gradients in host memory. On the wire: 8 bytes per step, for which the host waits.
  bool average_over_rows = false;
  bool order_fixed = false;            ///< CallOptions::order_fixed of the reductions.
  bool reproducible = false;           ///< CallOptions::reproducible of the reductions.
  std::chrono::nanoseconds timeout{};  ///< Timeout of each call; 0: the group's.
  Logger logger{};                     ///< Empty: default_logger().
  /// For hooks that compute, with gradients on a device.
  std::shared_ptr<DeviceArithmetic> arithmetic{};
};

/// Reduces gradients over the ranks of a group while backward still runs, like torch's
/// DistributedDataParallel. The framework keeps parameters, gradients and backward:
///
///     GradientReducer reducer(group, parameters);   // ranks start with rank 0's values
///     for each batch:
///       backward, which calls reducer.mark_ready(id, gradient) for each gradient
///       reducer.finish();                            // gradients are now means over the ranks
///       optimizer step
///
/// A bucket is reduced as soon as it has its gradients and the buckets before it are launched.
/// Memory: one copy of the gradients, in the group's registrable memory; a second copy for a moment
/// at the end of the first step. No allocation after the second step. Other calls on the group,
/// between the first mark of a step and finish(), must come in the same order on all ranks: give
/// the reducer a separate group (ProcessGroup::split).
///
/// Errors: a wrong mark (a gradient twice, missing, or of another shape) ends the step on all ranks
/// with an Error that names rank and parameter. On peers finish() throws it with code mismatch. The
/// group stays usable and the step's gradients are unspecified. The next mark_ready() begins a new
/// step; if finish() is called instead, after a mark that threw, it throws the same error. Errors
/// of the group (peer_lost, timeout) and of hooks break the group; every later mark and step throws
/// aborted with the first cause, until set_group().
///
/// Thread rules: mark_ready() and mark_unused() from any threads during backward; all other
/// functions from one thread, while no mark is running. A resource type: neither copied nor moved.
class GradientReducer {
 public:
  /// Collective. Compares parameters, buffers and options (one small message to each rank), and
  /// broadcasts rank 0's values. @throws Error invalid_argument if this rank's arguments are
  /// invalid; otherwise mismatch on every rank, whose text names the first difference.
  explicit GradientReducer(ProcessGroup& group, std::vector<Parameter> parameters,
                           const ReducerOptions& options = {}, std::vector<Parameter> buffers = {});
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  /// Does not communicate. Between a mark and finish() it aborts the group.
  ~GradientReducer();

  /// Reports that the gradient of `id`, of the parameter's shape, is computed. finish() leaves the
  /// result in the array. Until then, or until the reducer's end, it must live, and be neither read
  /// nor written. It is copied into its bucket and back, unless it lies there. On the host, without
  /// a hook, gradients of 1 MiB and more are reduced in their arrays, which may overlap no other.
  /// @param producer  on a device: the stream that computes the gradient and may use the result.
  ///                  For a bucket with several producers the host waits.
  void mark_ready(std::size_t id, const TensorView& gradient, Stream producer = {});
  /// Reports that this rank has no gradient of `id` in this step and contributes zeros. Without
  /// find_unused_parameters the same parameters must be unused on all ranks.
  void mark_unused(std::size_t id);
  /// Collective. Reduces the remaining buckets and writes the results to the gradients; on a
  /// device, in the order of the producers' streams. With find_unused_parameters, parameters
  /// without a mark are unused.
  void finish();
  /// finish() with average_over_rows. Each rank marks the sums of its rows' gradients: it
  /// back-propagates the sum of their losses, or the mean times their number. The results are the
  /// sums over all ranks, divided by the rows of all ranks; 0 if no rank has rows. A cast to f16
  /// must hold the sums. Within no_sync() this function only counts the rows of the micro-batch.
  /// @param rows  the number of this rank's rows since the last finish(rows), or the sum of their
  ///              weights: 0 or more. finish() and finish(rows) are mistakes where the other is
  ///              due.
  void finish(double rows);
  /// Makes a whole step on a rank without a batch: zeros for all gradients, with any options; with
  /// average_over_rows, of 0 rows.
  void step_empty();

  /// A scope in which marks and finish() do nothing; finish(rows) counts rows. The framework
  /// accumulates gradients of micro-batches within it, and marks the sums in the last micro-batch,
  /// after the scope.
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

  /// Collective. Copies rank 0's buffers to all ranks. If used, call it before each forward.
  /// @param stream  on a device: the stream that has written the buffers and will use them.
  void broadcast_buffers(Stream stream = {});

  /// Sets a hook, which reduces whole buckets and divides by Bucket::divisor(). Without a hook, the
  /// results are those of all_reduce_hook. A null hook changes nothing. A wrapper is applied to the
  /// hook, and rank 0 logs this. Call it with the same arguments on all ranks, between steps.
  /// @throws Error invalid_argument within a step.
  void set_hook(CommHook hook, const HookWrapper& wrapper = {});
  /// Like ReducerOptions::divisor, from the next step on; the same on all ranks.
  void set_divisor(double divisor);
  /// Collective: goes on over another group, whether the old one works or not, in the manner of the
  /// constructor: compares, broadcasts rank 0's parameters and buffers, and registers new memory. A
  /// new rank of the group makes its reducer meanwhile. An unfinished step is dropped, and aborts
  /// the old group; sums that no_sync() has accumulated are dropped with it: begin the batch anew.
  /// Keeps hook and divisor; the default divisor is the new W. Bucket::step() begins at 0 again,
  /// buckets are rebuilt after the first step, and gradient() has new places, which hold 0. Memory:
  /// a second copy of the gradients until it returns. After an error the reducer is of its old
  /// group; call it again with another one. Hooks with state: their headers.
  /// @throws Error invalid_argument within no_sync(); otherwise as the constructor.
  void set_group(ProcessGroup& group);

  /// The place of a gradient in its bucket, which the first finish() may move with its values; or,
  /// from finish() until the next mark, the marked array if that was reduced itself.
  TensorView gradient(std::size_t id) const;
  /// True after a finish() or step_empty() that did not throw, until the next mark.
  bool is_reduced() const noexcept;
  /// True if any rank had a gradient of `id` in the last step. With check_steps = false, always
  /// true after step_empty().
  bool is_used(std::size_t id) const;
  std::span<const Parameter> parameters() const noexcept;  ///< By id.
  /// Valid until the first finish() has ended. Gradients reduced in their arrays are not in them.
  std::span<const Bucket> buckets() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
}  // namespace tutti
