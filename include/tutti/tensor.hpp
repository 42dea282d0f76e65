#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>

#include <tutti/device.hpp>
#include <tutti/dtype.hpp>
#include <tutti/memory.hpp>
#include <tutti/shape.hpp>

namespace [[gnu::visibility("default")]] tutti {

namespace detail {
/// A contiguous range of elements that outlives the call: an lvalue, or a borrowed range (a span).
template <typename R>
concept ElementRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    Element<std::ranges::range_value_t<R>> &&
    (std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<std::remove_cvref_t<R>>);
template <typename R>
concept WritableRange =
    ElementRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <typename R>
concept ReadOnlyRange = ElementRange<R> && !WritableRange<R>;

/// @throws Error invalid_argument unless `shape` has `count` elements.
void check_view(std::size_t count, const Shape& shape);
/// The number of elements. @throws Error invalid_argument unless `dtype` is `asked`, in host
/// memory.
std::size_t count_of(DType asked, DType dtype, const Shape& shape, Device device);
}  // namespace detail

/// A borrowed, contiguous, mutable array. Never owns; cheap to copy.
struct TensorView {
  void* data = nullptr;            ///< The first element; may be null if there are none.
  DType dtype = DType::f32;        ///< Of the elements.
  Shape shape = Shape::vector(0);  ///< Row-major, without gaps.
  Device device{};                 ///< Of the memory at `data`.

  TensorView() = default;
  TensorView(void* d, DType t, const Shape& s, Device where = {})
      : data(d), dtype(t), shape(s), device(where) {}
  /// A vector, array or span of an element type, as one dimension in host memory.
  template <detail::WritableRange R>
  TensorView(R&& range)
      : data(std::ranges::data(range)),
        dtype(dtype_of<std::ranges::range_value_t<R>>),
        shape(Shape::vector(static_cast<std::int64_t>(std::ranges::size(range)))) {}
  /// Names the mistake in the error of the compiler.
  template <detail::ReadOnlyRange NeedsWritableElements>
  TensorView(NeedsWritableElements&& range) = delete;  // A TensorView needs writable elements.

  /// The elements. @throws Error invalid_argument for another dtype and for device memory.
  template <Element T>
  std::span<T> values() const {
    return {static_cast<T*>(data), detail::count_of(dtype_of<T>, dtype, shape, device)};
  }
  /// Of all elements.
  std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  }
  /// Of one row: all dimensions after the first.
  std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(shape.row_numel()) * size_of(dtype);
  }
};

/// The read-only twin of TensorView.
struct ConstTensorView {
  const void* data = nullptr;      ///< The first element; may be null if there are none.
  DType dtype = DType::f32;        ///< Of the elements.
  Shape shape = Shape::vector(0);  ///< Row-major, without gaps.
  Device device{};                 ///< Of the memory at `data`.

  ConstTensorView() = default;
  ConstTensorView(const void* d, DType t, const Shape& s, Device where = {})
      : data(d), dtype(t), shape(s), device(where) {}
  ConstTensorView(const TensorView& v)
      : data(v.data), dtype(v.dtype), shape(v.shape), device(v.device) {}
  template <detail::ElementRange R>
  ConstTensorView(R&& range)
      : data(std::ranges::data(range)),
        dtype(dtype_of<std::ranges::range_value_t<R>>),
        shape(Shape::vector(static_cast<std::int64_t>(std::ranges::size(range)))) {}
  /// See TensorView::values().
  template <Element T>
  std::span<const T> values() const {
    return {static_cast<const T*>(data), detail::count_of(dtype_of<T>, dtype, shape, device)};
  }
  /// Of all elements.
  std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  }
  /// Of one row: all dimensions after the first.
  std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(shape.row_numel()) * size_of(dtype);
  }
};

/// A view of `values` with this shape. @throws Error invalid_argument if the counts differ.
template <Element T>
auto view(std::span<T> values, const Shape& shape) {
  detail::check_view(values.size(), shape);
  using View = std::conditional_t<std::is_const_v<T>, ConstTensorView, TensorView>;
  return View(values.data(), dtype_of<T>, shape);
}
/// The same for a vector, array or span.
template <detail::ElementRange R>
auto view(R&& values, const Shape& shape) {
  return view(std::span(values), shape);
}

/// An owning array. Move-only. A temporary Tensor has no view, because a call could outlive it.
class Tensor {
 public:
  Tensor() noexcept = default;
  /// Not initialised. @throws Error resource_exhausted, count_overflow.
  Tensor(Memory& memory, const Shape& shape, DType dtype, Stream stream = {});
  /// A copy of a vector, a span, or a view, also of another Tensor. @throws Error invalid_argument
  /// if `from` is neither in host memory nor on the device of `memory`.
  explicit Tensor(const ConstTensorView& from, Memory& memory = host_memory(), Stream stream = {});

  /// Borrows the array, which must outlive the view.
  TensorView view() & noexcept { return {buffer_.get(), dtype_, shape_, device_}; }
  /// The same, read-only.
  ConstTensorView view() const& noexcept { return {buffer_.get(), dtype_, shape_, device_}; }
  void view() && = delete;
  operator TensorView() & noexcept { return view(); }
  operator ConstTensorView() & noexcept { return view(); }
  operator ConstTensorView() const& noexcept { return view(); }
  operator TensorView() && = delete;
  operator ConstTensorView() && = delete;

  void* data() noexcept { return buffer_.get(); }              ///< Null if default-made.
  const void* data() const noexcept { return buffer_.get(); }  ///< Null if default-made.
  DType dtype() const noexcept { return dtype_; }              ///< f32 if default-made.
  const Shape& shape() const noexcept { return shape_; }       ///< [0] if default-made.
  Device device() const noexcept { return device_; }           ///< The device of its Memory.
  /// See TensorView::values().
  template <Element T>
  std::span<T> values() & {
    return view().values<T>();
  }
  /// See TensorView::values().
  template <Element T>
  std::span<const T> values() const& {
    return view().values<T>();
  }
  template <Element T>
  void values() && = delete;
  std::size_t bytes() const noexcept { return view().bytes(); }  ///< Of all elements.

 private:
  struct Release {
    Memory* memory;
    std::size_t bytes;
    Stream stream;
    std::shared_ptr<const void> lifetime;  // From Memory::lifetime(); released after the data.
    void operator()(void* data) const noexcept { memory->release(data, bytes, stream); }
  };
  std::unique_ptr<void, Release> buffer_{nullptr, Release{nullptr, 0, {}, nullptr}};
  Shape shape_ = Shape::vector(0);
  DType dtype_ = DType::f32;
  Device device_{};
};

}  // namespace tutti
