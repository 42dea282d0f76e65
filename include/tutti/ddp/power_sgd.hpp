#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/ddp/bucket.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Equal on all ranks.
struct PowerSgdOptions {
  int rank = 1;                     ///< Of the approximation; at most that of the matrix.
  std::int64_t start_step = 1000;   ///< Steps before it are reduced as by all_reduce_hook.
  double min_compression_rate = 2;  ///< A matrix that shrinks less is sent as it is.
  bool error_feedback = true;       ///< What a step loses is added to the next one's gradients.
  bool warm_start = true;           ///< Q starts as that of the last step; else at random.
  /// Added to the norm of a column before the column is divided by it. 0: nothing is added, and a
  /// column that depends on those before it becomes 0.
  double orthogonalization_epsilon = 0;
  std::uint64_t seed = 0;  ///< Of Q, which is the same on every platform.
  /// Fills Q [columns, rank] of f32 or f64 instead of random numbers: equally on all ranks. `id` is
  /// that of the parameter; in batched_power_sgd_hook() the index of the bucket.
  std::function<void(std::size_t id, const TensorView& q)> initial_q{};
};

/// What PowerSGD keeps: the error of this rank, by parameter, and Q. Buckets may be rebuilt. One
/// state serves one hook of one reducer. A resource type: neither copied nor moved.
class PowerSgdState final : public HookState {
 public:
  /// @throws Error invalid_argument.
  explicit PowerSgdState(PowerSgdOptions options = {});
  PowerSgdState(const PowerSgdState&) = delete;
  PowerSgdState& operator=(const PowerSgdState&) = delete;
  ~PowerSgdState() override;

  /// Between steps. 4 bytes per element of a compressed parameter with error feedback, 8 of f64.
  std::string save() const override;
  /// Between steps, with the same options (except initial_q) and parameters; the buckets may
  /// differ.
  void load(std::string_view state) override;

  const PowerSgdOptions& options() const noexcept;
  std::int64_t step() const noexcept;  ///< Steps so far, with those before start_step.
  /// Elements of the gradients per element that a rank sends; 1 before the first compressed step.
  double compression_rate() const noexcept;

 private:
  friend Work power_sgd_hook(PowerSgdState& state, Bucket& bucket);
  friend Work batched_power_sgd_hook(PowerSgdState& state, Bucket& bucket);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sends two thin matrices instead of each gradient (Vogels, Karimireddy, Jaggi: "PowerSGD",
/// NeurIPS 2019), as torch's powerSGD_hook. A gradient [n, ...] is a matrix M [n, m], and with a Q
/// [m, r] whose columns are orthonormal:
///
///     P = sum over ranks of M Q, orthogonalised;  Q = sum over ranks of M^T P;  result = P Q^T / d
///
/// where d is Bucket::divisor(). The result has the same bits on all ranks if the backend's sums
/// have. Gradients that shrink too little, such as biases, are summed as they are. Arithmetic and
/// messages are in f64 for f64 and in f32 otherwise. A step with infinite or NaN gradients gives
/// NaN and does not spoil the next one.
///
/// On the wire: two all_reduces per bucket, the first of sum n r elements and those that are not
/// compressed, the second of sum m r. Both are issued at once. Memory: with it the compressed
/// gradients once and these messages; no allocation of arrays after the first compressed step.
/// `state` must outlive the Work.
/// @throws Error unsupported for gradients on a device and of a dtype other than f16, bf16, f32 and
///         f64; invalid_argument for a bucket of another hook or reducer.
Work power_sgd_hook(PowerSgdState& state, Bucket& bucket);
CommHook power_sgd_hook(std::shared_ptr<PowerSgdState> state);

/// The same with one matrix per bucket: its gradients behind each other as a square, filled up with
/// zeros. Cheaper and less exact, as torch's batched_powerSGD_hook; min_compression_rate has no
/// effect.
Work batched_power_sgd_hook(PowerSgdState& state, Bucket& bucket);
CommHook batched_power_sgd_hook(std::shared_ptr<PowerSgdState> state);

}  // namespace ddp
}  // namespace tutti
