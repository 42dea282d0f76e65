#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/call_options.hpp>
#include <tutti/process_group.hpp>
#include <tutti/reduce_op.hpp>
#include <tutti/tensor.hpp>

namespace tutti {
/// Data-parallel training: gradients are reduced while backward runs.
namespace [[gnu::visibility("default")]] ddp {

class DeviceArithmetic;  // <tutti/ddp/device_arithmetic.hpp>

/// The gradient of one parameter in a bucket.
struct Slice {
  std::size_t id = 0;       ///< The parameter's index in the reducer's list.
  std::int64_t offset = 0;  ///< First element in Bucket::buffer().
  Shape shape;              ///< Of the parameter.
  TensorView parameter{};   ///< Parameter::value, whose `data` may be null.
};

/// Gradients that are reduced as one array. A value type that borrows the array from the reducer:
/// valid while the reducer lives, and at most until it rebuilds its buckets at the end of the first
/// step, or gets another group.
///
/// Bucket i is launched before bucket i + 1, on all ranks. Index, slices and address are the same
/// in all steps of one generation(), so a hook may keep state by index().
class Bucket {
 public:
  using Slices = std::vector<Slice>;  ///< One for each parameter of the bucket.

  /// For reducers, and for hooks that reduce another array. `buffer` is [n] and holds all `slices`.
  /// @throws Error invalid_argument if it does not.
  Bucket(ProcessGroup& group, const TensorView& buffer, std::shared_ptr<const Slices> slices,
         int index = 0, int count = 1);
  Bucket(const Bucket&) = default;  // Moves copy: group() is always set.
  Bucket& operator=(const Bucket&) = default;

  int index() const noexcept { return index_; }                   ///< 0 to count() - 1.
  int count() const noexcept { return count_; }                   ///< Number of all buckets.
  bool is_last() const noexcept { return index_ + 1 == count_; }  ///< The last launch of a step.
  /// 0; one more after each rebuild and each GradientReducer::set_group(). Not equal on all ranks.
  int generation() const noexcept { return generation_; }
  std::int64_t step() const noexcept { return step_; }  ///< Steps over this group before this one.

  /// [n]: this rank's gradients, and the reduced ones after the hook's Work. Slices start at
  /// multiples of 64 bytes; elements between them are 0.
  const TensorView& buffer() const noexcept { return buffer_; }
  const Slices& slices() const noexcept { return *slices_; }  ///< The places of the gradients.
  /// The gradient of slices()[i], with the parameter's shape, within buffer().
  TensorView gradient(std::size_t i) const;
  /// The values of the parameter of slices()[i]; without data if the reducer does not know them.
  const TensorView& parameter(std::size_t i) const { return slices_->at(i).parameter; }
  /// Replaces buffer(), like torch's GradBucket.set_buffer: the reducer, or the wrapper that made
  /// this bucket, copies the result from this array. It has the shape, dtype and device of
  /// buffer(), and does not overlap it. A hook calls this before it returns or, on host memory, in
  /// Work::then().
  /// @param owner  is kept until the array is read. Null: the array lives until finish() ends.
  /// @throws Error invalid_argument; its text names both arrays.
  void set_buffer(const TensorView& buffer, std::shared_ptr<const void> owner = {});

  ProcessGroup& group() const noexcept { return *group_; }  ///< The reducer's.
  /// The divisor of the sum over ranks. The hook divides, not the reducer.
  double divisor() const noexcept { return divisor_; }
  /// The reduction that sums and divides by divisor(): avg, sum or premul_sum.
  ReduceOp op() const;
  /// For the hook's collectives: the reducer's timeout and order_fixed, the stream that produced
  /// the gradients, and a name that ranks compare: "ddp bucket 3". Borrowed from the reducer.
  const CallOptions& call() const noexcept { return call_; }

  /// On a device: what ReducerOptions::arithmetic brings; null: nothing. A hook that uses it puts
  /// its work on call().stream, also after its last call, and need not wait.
  DeviceArithmetic* arithmetic() const noexcept { return arithmetic_; }

  /// The same bucket over another array: [n] like buffer(), of any dtype, on any device.
  Bucket over(const TensorView& buffer) const;

  /// For reducers: call().
  void set_call(const CallOptions& options) noexcept { call_ = options; }
  /// For reducers: arithmetic().
  void set_arithmetic(DeviceArithmetic* arithmetic) noexcept { arithmetic_ = arithmetic; }
  /// For reducers: step() and divisor().
  void set_step(std::int64_t step, double divisor) noexcept {
    step_ = step;
    divisor_ = divisor;
  }
  /// For reducers: generation().
  void set_generation(int generation) noexcept { generation_ = generation; }

 private:
  std::shared_ptr<ProcessGroup> group_;
  TensorView buffer_;
  std::shared_ptr<const void> owner_;  // Of an array from set_buffer().
  std::shared_ptr<const Slices> slices_;
  int index_;
  int count_;
  int generation_ = 0;
  std::int64_t step_ = 0;
  double divisor_ = 1;
  CallOptions call_;
  DeviceArithmetic* arithmetic_ = nullptr;
};

/// Reduces one bucket over the ranks. The Work ends when buffer() holds the result, in its own
/// array or in that of set_buffer(); a finished Work is allowed. On a device, work that the hook
/// has put on call().stream may follow. The hook divides, the reducer does not. All ranks run the
/// hook once per bucket and step, in the order of index(), on the thread that makes the bucket
/// full; a rank that has only zeros runs it too. It issues async calls and may add Work::then().
/// The bucket lives until the Work has ended. Every rank makes the same calls; an exception aborts
/// the group.
using CommHook = std::function<Work(Bucket&)>;

/// Makes a hook from another hook: compression around any reduction.
using HookWrapper = std::function<CommHook(CommHook)>;

/// The state that a hook keeps from step to step, for checkpoints: error feedback, factors of the
/// last step. It differs between ranks: save and load it on each rank.
class HookState {
 public:
  virtual ~HookState();
  virtual std::string save() const = 0;  ///< Between steps: bytes for load().
  /// @throws Error invalid_argument for bytes that save() did not write; then nothing changes.
  virtual void load(std::string_view state) = 0;
};

}  // namespace ddp
}  // namespace tutti
