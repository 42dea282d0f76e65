#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/ddp/bucket.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

// Runs steps of a hook without a reducer: makes and reduces a rank's buckets as a reducer does.

namespace tutti::test {

/// Returns element i of a parameter's gradient in a step on a rank, between -1 and 1.
inline double gradient_value(std::size_t id, int rank, std::int64_t step, std::int64_t i) {
  const auto bits =
      mix(id * 1000 + index(rank), static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(i));
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

/// Element i of an array of floats, as a double.
inline void put(Array& array, std::int64_t i, double value) {
  switch (array.dtype()) {
    case DType::f16:
      return array.put<Float16>(i, Float16(static_cast<float>(value)));
    case DType::bf16:
      return array.put<BFloat16>(i, BFloat16(static_cast<float>(value)));
    case DType::f32:
      return array.put<float>(i, static_cast<float>(value));
    default:
      return array.put<double>(i, value);
  }
}
inline double get(const Array& array, std::int64_t i) {
  switch (array.dtype()) {
    case DType::f16:
      return static_cast<double>(static_cast<float>(array.get<Float16>(i)));
    case DType::bf16:
      return static_cast<double>(static_cast<float>(array.get<BFloat16>(i)));
    case DType::f32:
      return static_cast<double>(array.get<float>(i));
    default:
      return array.get<double>(i);
  }
}

/// A hook that reduces a copy of the bucket, spoils the bucket, and hands the copy back.
/// @param late  after the reduction; otherwise before it.
inline ddp::CommHook hook_with_an_array(bool late, std::weak_ptr<Tensor>* kept = nullptr) {
  return [=](ddp::Bucket& bucket) {
    Memory& memory = bucket.group().memory();
    const TensorView own = bucket.buffer();
    const auto other = std::make_shared<Tensor>(memory, own.shape, own.dtype);
    memory.copy(other->data(), own.data, own.bytes(), bucket.call().stream);
    const std::vector<std::byte> spoilt(own.bytes(), std::byte{0xff});
    memory.copy(own.data, spoilt.data(), own.bytes(), bucket.call().stream);
    if (kept != nullptr) *kept = other;
    const auto hand_over = [&bucket, other] { bucket.set_buffer(*other, other); };
    if (!late) hand_over();
    Work work = bucket.group().all_reduce_async(*other, bucket.op(), bucket.call());
    return late ? std::move(work).then(hand_over) : std::move(work);
  };
}

using GradientOf =
    std::function<double(std::size_t id, int rank, std::int64_t step, std::int64_t element)>;

/// The ids of a bucket's parameters.
using Ids = std::vector<std::size_t>;

class HookSteps {
 public:
  /// Puts the parameters with these ids into buckets.
  HookSteps(ProcessGroup& group, DType dtype, std::vector<Shape> shapes, std::vector<Ids> buckets)
      : group_(&group), dtype_(dtype), shapes_(std::move(shapes)) {
    lay_out(buckets);
  }

  /// Changes the buckets, as the rebuild of a reducer does.
  void lay_out(const std::vector<Ids>& buckets) {
    buckets_.clear();
    arrays_.clear();
    const auto unit = 64 / static_cast<std::int64_t>(size_of(dtype_));
    for (const Ids& ids : buckets) {
      auto slices = std::make_shared<ddp::Bucket::Slices>();
      std::int64_t at = 0;
      for (const std::size_t id : ids) {
        slices->push_back({id, at, shapes_[id]});
        at += (shapes_[id].numel() + unit - 1) / unit * unit;
      }
      arrays_.push_back(std::make_unique<Buffer>(*group_, Array(dtype_, {at})));
      buckets_.emplace_back(*group_, arrays_.back()->view(), slices,
                            static_cast<int>(buckets_.size()), static_cast<int>(buckets.size()));
    }
  }

  void set_divisor(double divisor) { divisor_ = divisor; }

  /// Runs one step and returns its results: [id][element].
  std::vector<std::vector<double>> run(const ddp::CommHook& hook,
                                       const GradientOf& gradient = gradient_value) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      ddp::Bucket& bucket = buckets_[b];
      Array content(dtype_, bucket.buffer().shape);
      for (const ddp::Slice& slice : bucket.slices())
        for (std::int64_t i = 0; i < slice.shape.numel(); ++i)
          put(content, slice.offset + i, gradient(slice.id, group_->rank(), step_, i));
      arrays_[b]->write(content);
      bucket.set_buffer(*arrays_[b]);
      bucket.set_step(step_, divisor_ == 0 ? group_->size() : divisor_);
    }
    std::vector<Work> works;
    for (ddp::Bucket& bucket : buckets_) works.push_back(hook(bucket));
    for (Work& work : works) work.wait();
    ++step_;
    std::vector<std::vector<double>> results(shapes_.size());
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      (void)arrays_[b]->read();  // Checks its guards.
      const Array content = content_of(*group_, buckets_[b].buffer());
      std::int64_t used = 0;
      for (const ddp::Slice& slice : buckets_[b].slices()) {
        for (; used < slice.offset; ++used)
          EXPECT_EQ(get(content, used), 0) << "between the gradients of bucket " << b;
        for (std::int64_t i = 0; i < slice.shape.numel(); ++i)
          results[slice.id].push_back(get(content, slice.offset + i));
        used = slice.offset + slice.shape.numel();
      }
    }
    return results;
  }

  /// Returns the sum of all ranks' gradients, divided by `divisor`.
  std::vector<std::vector<double>> mean(std::int64_t step, double divisor,
                                        const GradientOf& gradient = gradient_value) const {
    std::vector<std::vector<double>> all(shapes_.size());
    for (std::size_t id = 0; id < all.size(); ++id)
      for (std::int64_t i = 0; i < shapes_[id].numel(); ++i) {
        double sum = 0;
        for (int r = 0; r < group_->size(); ++r) sum += gradient(id, r, step, i);
        all[id].push_back(sum / divisor);
      }
    return all;
  }

  std::int64_t step() const { return step_; }
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  ProcessGroup* group_;
  DType dtype_;
  std::vector<Shape> shapes_;
  double divisor_ = 0;
  std::int64_t step_ = 0;
  std::vector<std::unique_ptr<Buffer>> arrays_;
  std::vector<ddp::Bucket> buckets_;
};

using Results = std::vector<std::vector<double>>;

inline void expect_near(const Results& got, const Results& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t id = 0; id < got.size(); ++id) {
    ASSERT_EQ(got[id].size(), want[id].size()) << "parameter " << id;
    for (std::size_t i = 0; i < got[id].size(); ++i)
      ASSERT_NEAR(got[id][i], want[id][i], tolerance)
          << "parameter " << id << " differs in element " << i;
  }
}

/// Expects the same bits as on rank 0.
inline void expect_same_on_all_ranks(ProcessGroup& group, const Results& results) {
  for (const auto& mine : results) {
    auto first = mine;
    group.broadcast(first, 0);
    EXPECT_EQ(mine, first) << "differs from rank 0";
  }
}

inline void add(Results& total, const Results& more, double factor) {
  total.resize(more.size());
  for (std::size_t id = 0; id < more.size(); ++id) {
    total[id].resize(more[id].size());
    for (std::size_t i = 0; i < more[id].size(); ++i) total[id][i] += factor * more[id][i];
  }
}

}  // namespace tutti::test
