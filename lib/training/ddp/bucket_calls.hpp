#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/ddp/bucket.hpp>
#include <tutti/work.hpp>

#include "ddp/gradient_arrays.hpp"
#include "ddp/step_state.hpp"

namespace tutti::ddp {

/// The call of a bucket in the current step. On a device, `works` may be of the previous step.
struct Launch {
  std::string name;
  std::size_t left = 0;  // Gradients not marked yet.
  std::optional<Stream> stream{};
  std::vector<Work> works{};

  void wait() {
    for (Work& work : works) work.wait();
  }
};

/// Issues the calls of the buckets: of each when all of its gradients are marked, in the order of
/// the buckets.
class BucketCalls {
 public:
  /// `gradients`: by parameter. All of it outlives this object.
  BucketCalls(ProcessGroup& group, GradientArrays& arrays, std::span<const Gradient> gradients,
              const CallOptions& options, DeviceArithmetic* arithmetic);

  /// Begins anew, with the buckets that `arrays` has now. No call may be under way.
  void renew();
  /// Begins the next step.
  void reset();
  void set_hook(CommHook hook);
  const CommHook& hook() const noexcept { return hook_; }
  bool has_hook() const noexcept { return hook_ != nullptr; }

  std::span<Launch> all() noexcept { return launches_; }
  Launch& of(std::size_t id) { return launches_[static_cast<std::size_t>(arrays_.bucket_of(id))]; }
  /// Issues the calls of the buckets that are full. Throws what a hook throws.
  void launch_full(std::int64_t step, double divisor);
  void wait();

 private:
  void reduce(const Bucket& bucket, Launch& launch);

  ProcessGroup& group_;
  GradientArrays& arrays_;
  std::span<const Gradient> gradients_;
  const CallOptions call_;
  DeviceArithmetic* arithmetic_;
  CommHook hook_;         // Empty: reduce().
  std::size_t next_ = 0;  // Index of the next bucket to launch.
  std::vector<Launch> launches_;
};

}  // namespace tutti::ddp
