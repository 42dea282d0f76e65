#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/ddp/bucket.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// Options of top_k_hook(). Equal on all ranks.
struct TopKOptions {
  double ratio = 0.01;  ///< Share of a bucket's elements, above 0; at least one element is sent.
  std::int64_t start_step = 0;  ///< Earlier steps are reduced by all_reduce_hook.
  bool error_feedback = true;   ///< Adds unsent elements to the next step's gradients.
};

/// The state of top_k_hook(): this rank's unsent elements, by parameter. Stays valid when buckets
/// are rebuilt. One state serves one reducer. A resource type: neither copied nor moved.
class TopKState final : public HookState {
 public:
  /// @throws Error invalid_argument.
  explicit TopKState(const TopKOptions& options = {});
  TopKState(const TopKState&) = delete;
  TopKState& operator=(const TopKState&) = delete;
  ~TopKState() override;

  /// Between steps. With error feedback 4 bytes per element, 8 for f64.
  std::string save() const override;
  /// Between steps, with the same options and parameters; the buckets may differ.
  void load(std::string_view state) override;

  const TopKOptions& options() const noexcept;
  std::int64_t step() const noexcept;  ///< Steps so far, including those before start_step.

 private:
  friend Work top_k_hook(TopKState& state, Bucket& bucket);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sends the k elements of the bucket that are largest in magnitude, k = ceil(ratio n) of its n
/// gradient elements; among equal elements the first. Each rank chooses for itself. The result is
/// the sum of the sent elements over Bucket::divisor(), added in rank order and so with the same
/// bits on all ranks. NaN counts as the largest.
///
/// On the wire: one all_gather of k elements and k positions of 4 bytes per rank; elements have 8
/// bytes for f64 and 4 otherwise. Memory: W messages, scratch of the largest bucket, and with error
/// feedback the gradients once; no allocation of arrays after the first step. `state` must outlive
/// the Work.
/// @throws Error unsupported for gradients on a device or of a dtype other than f16, bf16, f32 and
///         f64, and for buckets of 2^32 elements; invalid_argument for a bucket of another reducer.
Work top_k_hook(TopKState& state, Bucket& bucket);
CommHook top_k_hook(std::shared_ptr<TopKState> state);

}  // namespace ddp
}  // namespace tutti
