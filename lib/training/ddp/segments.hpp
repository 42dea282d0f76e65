#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <tutti/ddp/bucket.hpp>

// Packs the gradients of a bucket without padding, in the type in which hooks compute: f64 for f64,
// otherwise f32.

namespace tutti::ddp {

/// The place of a gradient in its bucket and in the array without padding.
struct Segment {
  std::size_t id = 0;     ///< Id of the parameter.
  std::int64_t from = 0;  ///< First element in the bucket.
  std::int64_t at = 0;    ///< First element in the array.
  std::int64_t count = 0;
};

inline DType compute_dtype(DType dtype) noexcept {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

inline bool is_on_device(const Bucket& bucket) noexcept {
  return bucket.buffer().device.type != DeviceType::cpu;
}
inline bool has_arithmetic(const Bucket& bucket) noexcept {
  return !is_on_device(bucket) || bucket.arithmetic() != nullptr;
}

/// Checks that the bucket holds floats of 2 bytes or more, in host memory or where a hook can
/// compute.
/// @throws Error unsupported; its text names the hook (`what`).
void check_computable(const Bucket& bucket, std::string_view what);

bool same_slices(const Bucket::Slices& a, const Bucket::Slices& b) noexcept;

/// Calls f.operator()<T>() with T the C++ type of compute_dtype(dtype).
template <typename F>
void with_compute_type(DType dtype, F&& f) {
  if (dtype == DType::f64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

/// Calls f with a pointer to the first element of `buffer`, in its stored type. T is the compute
/// type.
template <typename T, typename F>
void with_elements(const TensorView& buffer, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(static_cast<double*>(buffer.data));
  } else {
    if (buffer.dtype == DType::f16)
      f(static_cast<Float16*>(buffer.data));
    else if (buffer.dtype == DType::bf16)
      f(static_cast<BFloat16*>(buffer.data));
    else
      f(static_cast<float*>(buffer.data));
  }
}

/// Copies the segments of the bucket to `packed`, or adds them if `add` is set.
template <typename T>
void pack(std::span<const Segment> segments, const TensorView& buffer, T* packed, bool add) {
  with_elements<T>(buffer, [&](const auto* elements) {
    for (const Segment& s : segments) {
      const auto* in = elements + s.from;
      T* out = packed + s.at;
      for (std::int64_t i = 0; i < s.count; ++i)
        out[i] = (add ? out[i] : T(0)) + static_cast<T>(in[i]);
    }
  });
}

/// Writes packed * scale to the segments of the bucket.
template <typename T>
void unpack(std::span<const Segment> segments, const T* packed, T scale, const TensorView& buffer) {
  with_elements<T>(buffer, [&](auto* elements) {
    using E = std::remove_pointer_t<decltype(elements)>;
    for (const Segment& s : segments)
      for (std::int64_t i = 0; i < s.count; ++i)
        elements[s.from + i] = static_cast<E>(packed[s.at + i] * scale);
  });
}

}  // namespace tutti::ddp
