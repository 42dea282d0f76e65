#include "ddp/bucket_calls.hpp"

#include <utility>

#include <fmt/format.h>

namespace tutti::ddp {

BucketCalls::BucketCalls(ProcessGroup& group, GradientArrays& arrays,
                         std::span<const Gradient> gradients, const CallOptions& options,
                         DeviceArithmetic* arithmetic)
    : group_(group),
      arrays_(arrays),
      gradients_(gradients),
      call_(options),
      arithmetic_(arithmetic) {
  renew();
}

void BucketCalls::renew() {
  launches_.clear();
  for (const Bucket& bucket : arrays_.buckets())
    launches_.push_back(
        {.name = fmt::format("ddp bucket {}", bucket.index()), .left = bucket.slices().size()});
}

void BucketCalls::reset() {
  next_ = 0;
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    launches_[i].left = arrays_.buckets()[i].slices().size();
    launches_[i].stream.reset();
  }
}

void BucketCalls::set_hook(CommHook hook) {
  hook_ = std::move(hook);
  arrays_.set_copied(has_hook());
}

void BucketCalls::wait() {
  for (Launch& launch : launches_) launch.wait();
}

void BucketCalls::launch_full(std::int64_t step, double divisor) {
  for (; next_ < launches_.size() && launches_[next_].left == 0; ++next_) {
    Bucket& bucket = arrays_.buckets()[next_];
    Launch& launch = launches_[next_];
    CallOptions mine = call_;
    // Without a gradient of this rank: the stream of the last step.
    mine.stream =
        launch.stream.value_or(gradients_[bucket.slices().front().id].producer.value_or(Stream{}));
    mine.name = launch.name;
    bucket.set_call(mine);
    bucket.set_step(step, divisor);
    bucket.set_arithmetic(arithmetic_);
    if (hook_) {
      launch.works.resize(1);
      launch.works.front() = hook_(bucket);
    } else {
      reduce(bucket, launch);
    }
  }
}

/// Reduces the small gradients of the bucket in one call, and each large one where it is: in the
/// caller's array, or in the bucket if this rank has none. Ranks need not agree on that.
void BucketCalls::reduce(const Bucket& bucket, Launch& launch) {
  TensorView small = bucket.buffer();
  std::size_t calls = 0;
  const auto all_reduce = [&](const TensorView& array) {
    if (calls == launch.works.size()) launch.works.emplace_back();
    launch.works[calls++] = group_.all_reduce_async(array, bucket.op(), bucket.call());
  };
  for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
    const Slice& slice = bucket.slices()[i];
    if (!arrays_.is_large(slice.id)) continue;
    if (calls == 0) small.shape = Shape{slice.offset};
    const Gradient& mine = gradients_[slice.id];
    all_reduce(mine.in_place ? mine.array : bucket.gradient(i));
  }
  if (small.bytes() != 0 || calls == 0) all_reduce(small);
  launch.works.resize(calls);
}

}  // namespace tutti::ddp
