#include "ddp/segments.hpp"

#include "values/fail.hpp"

namespace tutti::ddp {

void check_computable(const Bucket& bucket, std::string_view what) {
  const TensorView& buffer = bucket.buffer();
  if (!has_arithmetic(bucket) || !is_float(buffer.dtype) || size_of(buffer.dtype) < 2)
    internal::failf(Errc::unsupported,
                    "{} takes f16, bf16, f32 and f64 in host memory, or on a device with "
                    "ReducerOptions::arithmetic; bucket {} is {} on {}",
                    what, bucket.index(), name_of(buffer.dtype), to_string(buffer.device));
}

bool same_slices(const Bucket::Slices& a, const Bucket::Slices& b) noexcept {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].id != b[i].id || a[i].offset != b[i].offset || !(a[i].shape == b[i].shape))
      return false;
  return true;
}

}  // namespace tutti::ddp
