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

/// Options of PowerSGD. Equal on all ranks.
struct PowerSgdOptions {
  int rank = 1;                     ///< Of the approximation; at most that of the matrix.
  std::int64_t start_step = 1000;   ///< Earlier steps are reduced by all_reduce_hook.
  double min_compression_rate = 2;  ///< A matrix with a lower rate is sent uncompressed.
  bool error_feedback = true;       ///< Adds what a step loses to the next step's gradients.
  bool warm_start = true;           ///< Q starts as the last step's Q; false: as random numbers.
  /// Added to the norm of a column before the column is divided by it. 0: nothing is added, and a
  /// column that depends linearly on earlier columns becomes 0.
  double orthogonalization_epsilon = 0;
  std::uint64_t seed = 0;  ///< Seed of Q, which is the same on every platform.
  /// Fills Q [columns, rank] of f32 or f64 instead of random numbers, equally on all ranks. `id` is
  /// the parameter's; in batched_power_sgd_hook() it is the bucket's index.
  std::function<void(std::size_t id, const TensorView& q)> initial_q{};
};

/// The state of PowerSGD: this rank's compression error by parameter, and Q. Stays valid when
/// buckets are rebuilt. One state serves one hook of one reducer. A resource type: neither copied
/// nor moved.
class PowerSgdState final : public HookState {
 public:
  /// @throws Error invalid_argument.
  explicit PowerSgdState(PowerSgdOptions options = {});
  PowerSgdState(const PowerSgdState&) = delete;
  PowerSgdState& operator=(const PowerSgdState&) = delete;
  ~PowerSgdState() override;

  /// Between steps. With error feedback, 4 bytes per element of a compressed parameter, 8 for f64.
  std::string save() const override;
  /// Between steps, with the same options (except initial_q) and parameters; the buckets may
  /// differ.
  void load(std::string_view state) override;
  /// Collective, after GradientReducer::set_group(), with the states of new ranks too: takes the
  /// step and Q from rank 0. On the host it keeps this rank's error, except that of buckets whose
  /// reduction had not ended; the error of lost ranks is lost, and that of new ranks is 0. On a
  /// device all errors are 0. On the wire: Q, in 4 bytes per element, 8 for f64.
  /// @throws Error mismatch on every rank, with both sides, for other options than those of rank 0.
  void set_group(ProcessGroup& group);

  const PowerSgdOptions& options() const noexcept;  ///< As given to the constructor.
  std::int64_t step() const noexcept;  ///< Steps so far, including those before start_step.
  /// Ratio of gradient elements to elements that a rank sends; 1 before the first compressed step.
  double compression_rate() const noexcept;

 private:
  friend Work power_sgd_hook(PowerSgdState& state, Bucket& bucket);
  friend Work batched_power_sgd_hook(PowerSgdState& state, Bucket& bucket);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sends two thin matrices instead of each gradient (Vogels, Karimireddy, Jaggi: "PowerSGD",
/// NeurIPS 2019), like torch's powerSGD_hook. A gradient [n, ...] is a matrix M [n, m], and with a
/// Q [m, r] whose columns are orthonormal:
///
///     P = sum over ranks of M Q, orthogonalised;  Q = sum over ranks of M^T P;  result = P Q^T / d
///
/// where d is Bucket::divisor(). The result has the same bits on all ranks if the backend's sums
/// do. Gradients that shrink too little, such as biases, are summed uncompressed. Arithmetic is
/// in f64 for f64 and in f32 otherwise; messages have the dtype of the gradients, so under
/// fp16_compress_wrapper 2 bytes per element. A step with infinite or NaN gradients gives
/// NaN and does not affect the next step.
///
/// On the wire: two all_reduces per bucket, both issued at once. The first has sum n r elements and
/// the uncompressed gradients, the second sum m r elements. Memory: these messages, and with error
/// feedback the compressed gradients once; no allocation of arrays after the first compressed step.
/// `state` must outlive the Work.
/// On a device the arithmetic is ReducerOptions::arithmetic, which ranks with equal devices use
/// with equal results; the host does not wait, except for a Q that is not the last step's.
/// @throws Error unsupported for gradients on a device without it, or of a dtype other than f16,
///         bf16, f32 and f64; invalid_argument for a bucket of another hook or reducer.
Work power_sgd_hook(PowerSgdState& state, Bucket& bucket);
CommHook power_sgd_hook(std::shared_ptr<PowerSgdState> state);  ///< Keeps `state`.

/// PowerSGD with one matrix per bucket: its gradients in sequence as a square, padded with zeros.
/// Cheaper and less exact, like torch's batched_powerSGD_hook; min_compression_rate is ignored.
Work batched_power_sgd_hook(PowerSgdState& state, Bucket& bucket);
CommHook batched_power_sgd_hook(std::shared_ptr<PowerSgdState> state);  ///< Keeps `state`.

}  // namespace ddp
}  // namespace tutti
