#include <tutti/ddp/bucket.hpp>

#include <cstddef>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <tutti/ddp/device_arithmetic.hpp>

#include "values/fail.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

Bucket::Bucket(ProcessGroup& group, const TensorView& buffer, std::shared_ptr<const Slices> slices,
               int index, int count)
    : group_(std::make_shared<ProcessGroup>(group.share())),
      buffer_(buffer),
      slices_(std::move(slices)),
      index_(index),
      count_(count),
      divisor_(group.size()) {
  using internal::failf;
  if (buffer_.shape.ndim() != 1)
    failf(Errc::invalid_argument, "the array of a bucket is {}; it must have one dimension",
          to_string(buffer_.shape));
  if (slices_ == nullptr) failf(Errc::invalid_argument, "the slices of a bucket are null");
  for (const Slice& slice : *slices_)
    if (slice.offset < 0 || slice.offset > buffer_.shape.numel() ||
        slice.shape.numel() > buffer_.shape.numel() - slice.offset)
      failf(Errc::invalid_argument,
            "parameter {} has {} elements at offset {} of a bucket, which has only {}", slice.id,
            slice.shape.numel(), slice.offset, buffer_.shape.numel());
}

TensorView Bucket::gradient(std::size_t i) const {
  const Slice& slice = slices_->at(i);
  auto* const first = static_cast<std::byte*>(buffer_.data) +
                      static_cast<std::size_t>(slice.offset) * size_of(buffer_.dtype);
  return {first, buffer_.dtype, slice.shape, buffer_.device};
}

void Bucket::set_buffer(const TensorView& buffer, std::shared_ptr<const void> owner) {
  const auto text = [](const TensorView& array) {
    return fmt::format("{} {} on {}", name_of(array.dtype), to_string(array.shape),
                       to_string(array.device));
  };
  if (buffer.dtype != buffer_.dtype || !(buffer.shape == buffer_.shape) ||
      !(buffer.device == buffer_.device))
    internal::failf(Errc::invalid_argument,
                    "Bucket::set_buffer: the array for bucket {} is {}; it must be {}", index_,
                    text(buffer), text(buffer_));
  if (buffer.data == nullptr && buffer.bytes() != 0)
    internal::failf(Errc::invalid_argument,
                    "Bucket::set_buffer: the array for bucket {} is null; pass its address",
                    index_);
  const auto* const mine = static_cast<const std::byte*>(buffer_.data);
  const auto* const theirs = static_cast<const std::byte*>(buffer.data);
  const std::less<> before;
  if (mine != theirs && before(mine, theirs + buffer.bytes()) &&
      before(theirs, mine + buffer_.bytes()))
    internal::failf(Errc::invalid_argument,
                    "Bucket::set_buffer: the array for bucket {} at {} overlaps its buffer at {}",
                    index_, buffer.data, buffer_.data);
  buffer_ = buffer;
  owner_ = std::move(owner);
}

ReduceOp Bucket::op() const {
  if (divisor_ == 1) return ReduceOp::sum;
  // In types of 1 or 2 bytes the sum may overflow although the mean is finite, so each rank scales
  // before the sum.
  const bool small = is_float(buffer_.dtype) && size_of(buffer_.dtype) <= 2;
  if (divisor_ == group_->size() && !small) return ReduceOp::avg;
  return ReduceOp::premul(1 / divisor_);
}

Bucket Bucket::over(const TensorView& buffer) const {
  if (!(buffer.shape == buffer_.shape))
    internal::failf(Errc::invalid_argument,
                    "Bucket::over: the array for bucket {} is {}; its shape must be {}", index_,
                    to_string(buffer.shape), to_string(buffer_.shape));
  Bucket other = *this;
  other.buffer_ = buffer;
  other.owner_ = nullptr;
  return other;
}

HookState::~HookState() = default;

DeviceArithmetic::~DeviceArithmetic() = default;

}  // namespace ddp
}  // namespace tutti
