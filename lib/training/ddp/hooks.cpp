#include <tutti/ddp/hooks.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/ddp/device_arithmetic.hpp>

#include "ddp/segments.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace ddp {
namespace {

/// to[i] = from[i], converted through f32. Rounds to nearest.
template <typename From, typename To>
void convert(const ConstTensorView& from, const TensorView& to) {
  const auto* in = static_cast<const From*>(from.data);
  auto* out = static_cast<To*>(to.data);
  const auto n = static_cast<std::size_t>(from.shape.numel());
  for (std::size_t i = 0; i < n; ++i) out[i] = To(static_cast<float>(in[i]));
}

/// Converts from Small to f32 or f64, or back.
template <typename Small>
void cast_small(const ConstTensorView& from, const TensorView& to) {
  if (from.dtype == DType::f32) return convert<float, Small>(from, to);
  if (from.dtype == DType::f64) return convert<double, Small>(from, to);
  if (to.dtype == DType::f32) return convert<Small, float>(from, to);
  return convert<Small, double>(from, to);
}

void cast(DType small, const ConstTensorView& from, const TensorView& to) {
  if (small == DType::f16)
    cast_small<Float16>(from, to);
  else
    cast_small<BFloat16>(from, to);
}

/// Wraps a hook, which gets the gradients in a type of 2 bytes.
class Compression {
 public:
  Compression(DType dtype, CommHook hook) noexcept : dtype_(dtype), hook_(std::move(hook)) {}

  Work operator()(Bucket& bucket) {
    const TensorView& wide = bucket.buffer();
    if (is_float(wide.dtype) && size_of(wide.dtype) <= 2) return hook_(bucket);
    if (!is_float(wide.dtype) || !has_arithmetic(bucket))
      internal::failf(Errc::unsupported,
                      "the compression to {} takes floats in host memory, or on a device with "
                      "ReducerOptions::arithmetic; bucket {} is {} on {}",
                      name_of(dtype_), bucket.index(), name_of(wide.dtype), to_string(wide.device));
    Copy& copy = copy_of(bucket);
    if (is_on_device(bucket)) {
      const Stream stream = bucket.call().stream;
      bucket.arithmetic()->scale(wide, 1, copy.narrow, false, stream);
      Work work = hook_(*copy.bucket);
      work.block_stream(stream);
      bucket.arithmetic()->scale(copy.bucket->buffer(), 1, wide, false, stream);
      return work;
    }
    cast(dtype_, wide, copy.narrow);
    return hook_(*copy.bucket).then([&copy, &bucket] {
      cast(copy.narrow.dtype(), copy.bucket->buffer(), bucket.buffer());
      copy.bucket->set_buffer(copy.narrow);
    });
  }

 private:
  struct Copy {
    Tensor narrow;
    std::optional<Bucket> bucket;  // The inner hook's bucket, valid until its Work has ended.
  };

  Copy& copy_of(const Bucket& bucket) {
    const auto index = static_cast<std::size_t>(bucket.index());
    if (copies_.size() <= index) copies_.resize(index + 1);
    auto& copy = copies_[index];
    if (copy == nullptr) copy = std::make_unique<Copy>();
    if (!copy->bucket || !(copy->narrow.shape() == bucket.buffer().shape))
      copy->narrow =
          Tensor(bucket.group().memory(), bucket.buffer().shape, dtype_, bucket.call().stream);
    copy->bucket.emplace(bucket.over(copy->narrow));
    return *copy;
  }

  DType dtype_;
  CommHook hook_;
  std::vector<std::unique_ptr<Copy>> copies_;  // Indexed by Bucket::index().
};

CommHook compressed(DType dtype, CommHook hook) {
  if (!hook)
    internal::failf(
        Errc::invalid_argument,
        "the hook passed to the wrapper that compresses to {} is null; pass all_reduce_hook",
        name_of(dtype));
  return [compression = std::make_shared<Compression>(dtype, std::move(hook))](Bucket& bucket) {
    return (*compression)(bucket);
  };
}

}  // namespace
}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

Work all_reduce_hook(Bucket& bucket) {
  return bucket.group().all_reduce_async(bucket.buffer(), bucket.op(), bucket.call());
}

Work noop_hook(Bucket&) {
  return {};
}

CommHook fp16_compress_hook() {
  return fp16_compress_wrapper(all_reduce_hook);
}

CommHook bf16_compress_hook() {
  return bf16_compress_wrapper(all_reduce_hook);
}

CommHook fp16_compress_wrapper(CommHook hook) {
  return compressed(DType::f16, std::move(hook));
}

CommHook bf16_compress_wrapper(CommHook hook) {
  return compressed(DType::bf16, std::move(hook));
}

}  // namespace ddp
}  // namespace tutti
