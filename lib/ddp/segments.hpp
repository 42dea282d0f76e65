#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <tutti/ddp/bucket.hpp>

// Gradients of a bucket behind each other, without the padding between them, in the type in which a
// hook computes: f64 for f64, otherwise f32.

namespace tutti::ddp {

/// The place of a gradient in its bucket and in the array without padding.
struct Segment {
  std::size_t id = 0;     ///< Of the parameter.
  std::int64_t from = 0;  ///< First element in the bucket.
  std::int64_t at = 0;    ///< First element in the array.
  std::int64_t count = 0;
};

inline DType compute_dtype(DType dtype) noexcept {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// @throws Error unsupported unless the bucket has floats of 2 bytes or more in host memory. `what`
/// names the hook.
void check_computable(const Bucket& bucket, std::string_view what);

bool same_slices(const Bucket::Slices& a, const Bucket::Slices& b) noexcept;

/// Calls f.operator()<T>() with the type that belongs to compute_dtype(dtype).
template <typename F>
void with_compute_type(DType dtype, F&& f) {
  if (dtype == DType::f64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

/// Calls f(first element of `buffer`), a pointer to the elements' own type; T is the compute type.
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

/// packed = the segments of the bucket, or += with `add`.
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

/// The segments of the bucket = packed x scale.
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
