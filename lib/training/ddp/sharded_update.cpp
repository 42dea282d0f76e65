#include <tutti/ddp/sharded_update.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <tutti/ddp/hooks.hpp>

#include "values/fail.hpp"

namespace tutti {
namespace ddp {
namespace {

using internal::failf;

/// Returns `count` elements of an array, from element `first` on.
TensorView elements(const TensorView& array, std::int64_t first, std::int64_t count) {
  auto* const begin = static_cast<std::byte*>(array.data);
  const auto offset = static_cast<std::size_t>(first) * size_of(array.dtype);
  return {begin == nullptr ? nullptr : begin + offset, array.dtype, {count}, array.device};
}

/// Divides a bucket between the ranks in units of 64 bytes. Returns each rank's number of elements.
std::vector<std::int64_t> divide(const TensorView& buffer, int ranks) {
  const std::int64_t numel = buffer.shape.numel();
  const auto unit = static_cast<std::int64_t>(64 / size_of(buffer.dtype));
  const std::int64_t units = (numel + unit - 1) / unit;
  const auto begin = [&](int rank) { return std::min(numel, units * rank / ranks * unit); };
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(begin(rank + 1) - begin(rank));
  return counts;
}

}  // namespace

struct ShardedUpdate::Impl {
  explicit Impl(GradientReducer& r) : reducer(r) {}

  Work reduce(Bucket& bucket);
  void divide_buckets();
  void step(const Update& update, Stream stream);
  void give_up(const char* why);
  TensorView own_part(const Bucket& bucket) const;

  /// The division of a bucket, and this rank's shards of it.
  struct Part {
    std::vector<std::int64_t> counts;  // Elements of each rank.
    std::size_t first_shard = 0;
    std::size_t end_shard = 0;
    std::string name;
    Work gather;
  };
  GradientReducer& reducer;
  bool active = true;    // False once the ShardedUpdate is destroyed.
  bool divided = false;  // True from the first step() on; buckets do not change after it.
  int generation = 0;    // Of the divided buckets.
  bool reduced = false;  // True if gradients were reduced since the last step().
  std::chrono::nanoseconds timeout{};
  std::vector<Part> parts;  // Indexed by Bucket::index().
  std::vector<Shard> shards;
  std::vector<std::int64_t> places;  // First element of each shard in its bucket.
  std::int64_t state_size = 0;
};

TensorView ShardedUpdate::Impl::own_part(const Bucket& bucket) const {
  const auto& counts = parts[static_cast<std::size_t>(bucket.index())].counts;
  const int rank = bucket.group().rank();
  return elements(bucket.buffer(), Rows(counts).offset(rank),
                  counts[static_cast<std::size_t>(rank)]);
}

/// Reduces a bucket, as the reducer's hook. Before the first step() the buckets may still be
/// rebuilt, so every rank gets all gradients.
Work ShardedUpdate::Impl::reduce(Bucket& bucket) {
  timeout = bucket.call().timeout;
  if (bucket.is_last()) reduced = true;
  if (!active || !divided) return all_reduce_hook(bucket);
  if (bucket.generation() != generation)
    failf(Errc::invalid_argument,
          "ShardedUpdate: the reducer has got another group since the last step; make a new "
          "ShardedUpdate after set_group()");
  const auto& counts = parts[static_cast<std::size_t>(bucket.index())].counts;
  return bucket.group().reduce_scatter_async(bucket.buffer(), own_part(bucket), counts, bucket.op(),
                                             bucket.call());
}

void ShardedUpdate::Impl::divide_buckets() {
  for (const Bucket& bucket : reducer.buckets()) {
    generation = bucket.generation();
    Part& part = parts.emplace_back();
    part.counts = divide(bucket.buffer(), bucket.group().size());
    part.name = fmt::format("ddp parameters {}", bucket.index());
    part.first_shard = shards.size();
    const auto rank = bucket.group().rank();
    const std::int64_t begin = Rows(part.counts).offset(rank);
    const std::int64_t end = begin + part.counts[static_cast<std::size_t>(rank)];
    for (const Slice& slice : bucket.slices()) {
      const std::int64_t from = std::max(begin, slice.offset);
      const std::int64_t to = std::min(end, slice.offset + slice.shape.numel());
      if (from >= to) continue;
      shards.push_back({slice.id, from - slice.offset, to - from, state_size});
      places.push_back(from);
      state_size += to - from;
    }
    part.end_shard = shards.size();
  }
  divided = true;
}

void ShardedUpdate::Impl::step(const Update& update, Stream stream) {
  const auto parameters = reducer.parameters();
  const auto buckets = reducer.buckets();
  for (const Bucket& bucket : buckets) {
    Part& part = parts[static_cast<std::size_t>(bucket.index())];
    for (std::size_t i = part.first_shard; i < part.end_shard; ++i) {
      const Shard& shard = shards[i];
      const auto parameter = elements(parameters[shard.id].value, shard.first, shard.count);
      const auto gradient = elements(bucket.buffer(), places[i], shard.count);
      update(shard, parameter, gradient);
      bucket.group().memory().copy(gradient.data, parameter.data, gradient.bytes(), stream);
    }
    part.gather =
        bucket.group().all_gather_async(own_part(bucket), bucket.buffer(), part.counts,
                                        {.stream = stream, .timeout = timeout, .name = part.name});
  }
  for (const Bucket& bucket : buckets) {
    Work& gather = parts[static_cast<std::size_t>(bucket.index())].gather;
    if (bucket.buffer().device.type == DeviceType::cpu)
      gather.wait();
    else
      gather.block_stream(stream);
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      const TensorView& parameter = parameters[bucket.slices()[i].id].value;
      if (parameter.bytes() == 0) continue;
      bucket.group().memory().copy(parameter.data, bucket.gradient(i).data, parameter.bytes(),
                                   stream);
    }
  }
}

/// Aborts the group: peers may wait for a gather that this rank will not call.
void ShardedUpdate::Impl::give_up(const char* why) {
  const auto buckets = reducer.buckets();
  if (!buckets.empty()) buckets[0].group().abort(fmt::format("ShardedUpdate: {}", why));
  for (Part& part : parts) part.gather = Work();  // Destroying the old Work waits for it.
}

}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

ShardedUpdate::ShardedUpdate(GradientReducer& reducer) : impl_(std::make_shared<Impl>(reducer)) {
  for (const Parameter& parameter : reducer.parameters())
    if (parameter.value.data == nullptr && parameter.value.bytes() != 0)
      failf(Errc::invalid_argument,
            "ShardedUpdate: parameter '{}' has no data; pass its array to the reducer",
            parameter.name);
  reducer.set_hook([impl = impl_](Bucket& bucket) { return impl->reduce(bucket); });
}

ShardedUpdate::~ShardedUpdate() {
  impl_->active = false;
  impl_->parts.clear();  // Waits for the gathers under way on a device.
}

void ShardedUpdate::step(const Update& update, Stream stream) {
  if (!update)
    failf(Errc::invalid_argument, "ShardedUpdate::step: the update is empty; pass a function");
  if (!impl_->reduced)
    failf(Errc::invalid_argument,
          "ShardedUpdate::step: the reducer has ended no step since the last update; call finish() "
          "or step_empty() first");
  if (!impl_->reducer.is_reduced())
    failf(Errc::invalid_argument,
          "ShardedUpdate::step: the reducer's step has not ended, or it ended with an error; call "
          "finish(), or repeat the step");
  impl_->reduced = false;
  if (!impl_->divided) impl_->divide_buckets();
  try {
    impl_->step(update, stream);
  } catch (const std::exception& error) {
    impl_->give_up(error.what());
    throw;
  } catch (...) {
    impl_->give_up("the update threw");
    throw;
  }
}

std::span<const Shard> ShardedUpdate::shards() const noexcept {
  return impl_->shards;
}

std::int64_t ShardedUpdate::state_size() const noexcept {
  return impl_->state_size;
}

}  // namespace ddp
}  // namespace tutti
