#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/ddp/bucket.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Equal on all ranks.
struct TopKOptions {
  double ratio = 0.01;          ///< Of a bucket's elements, above 0; at least one element is sent.
  std::int64_t start_step = 0;  ///< Steps before it are reduced as by all_reduce_hook.
  bool error_feedback = true;   ///< What is not sent is added to the next step's gradients.
};

/// What top_k_hook() keeps: the error of this rank, by parameter. Buckets may be rebuilt. One state
/// serves one reducer. A resource type: neither copied nor moved.
class TopKState final : public HookState {
 public:
  /// @throws Error invalid_argument.
  explicit TopKState(const TopKOptions& options = {});
  TopKState(const TopKState&) = delete;
  TopKState& operator=(const TopKState&) = delete;
  ~TopKState() override;

  /// Between steps. With error feedback 4 bytes per element, 8 of f64.
  std::string save() const override;
  /// Between steps, with the same options and parameters; the buckets may differ.
  void load(std::string_view state) override;

  const TopKOptions& options() const noexcept;
  std::int64_t step() const noexcept;  ///< Steps so far, with those before start_step.

 private:
  friend Work top_k_hook(TopKState& state, Bucket& bucket);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sends the k elements of the bucket that are largest in magnitude, k = ceil(ratio n) of its n
/// gradients' elements; of equal ones the first. Each rank chooses its own. The result is the sum
/// of what ranks sent, added in rank order and so with the same bits on all ranks, over
/// Bucket::divisor(). NaN counts as the largest.
///
/// On the wire: one all_gather of k elements and k positions of 4 bytes per rank; elements have 8
/// bytes for f64 and 4 otherwise. Memory: with it the gradients once, W messages, and scratch of
/// the largest bucket; no allocation of arrays after the first step. `state` must outlive the Work.
/// @throws Error unsupported for gradients on a device, of a dtype other than f16, bf16, f32 and
///         f64, and for buckets of 2^32 elements; invalid_argument for a bucket of another reducer.
Work top_k_hook(TopKState& state, Bucket& bucket);
CommHook top_k_hook(std::shared_ptr<TopKState> state);

}  // namespace ddp
}  // namespace tutti
