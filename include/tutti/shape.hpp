#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <tutti/format.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Up to 8 dimensions, stored inline; row-major and contiguous by definition. A value type.
/// A row has all dimensions after the first one; a 0-dimensional shape is one row.
class Shape {
 public:
  static constexpr std::size_t max_dims = 8;  ///< The largest ndim().

  Shape() noexcept { dims_[0] = dims_[1] = 0; }  ///< 0-dimensional: one element.
  Shape(const Shape& other) noexcept { assign(other); }
  Shape& operator=(const Shape& other) noexcept {
    assign(other);
    return *this;
  }
  /// @throws Error invalid_argument for a negative or a ninth dimension, count_overflow when the
  ///         product of the non-zero dimensions does not fit in 63 bits.
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims);
  /// One dimension, [n]. Inline, because every call that passes a range of elements uses it.
  static Shape vector(std::int64_t n) { return n < 0 ? Shape({n}) : Shape(Vector{n}); }

  std::size_t ndim() const noexcept { return ndim_; }  ///< 0 .. max_dims.
  std::span<const std::int64_t> dims() const noexcept { return {dims_, ndim_}; }  ///< Outer first.
  std::int64_t numel() const noexcept { return rows() * row_numel_; }  ///< The number of elements.
  std::int64_t rows() const noexcept { return ndim_ == 0 ? 1 : dims_[0]; }  ///< Dimension 0, or 1.
  std::int64_t row_numel() const noexcept { return row_numel_; }            ///< Elements per row.
  /// The dimensions after the first.
  std::span<const std::int64_t> row_dims() const noexcept {
    return ndim_ == 0 ? std::span<const std::int64_t>() : dims().subspan(1);
  }
  Shape with_rows(std::int64_t rows) const;  ///< The same row shape, another dim 0.

  friend bool operator==(const Shape& a, const Shape& b) noexcept {
    if (a.ndim_ != b.ndim_) return false;
    for (std::size_t i = 0; i < a.ndim_; ++i)
      if (a.dims_[i] != b.dims_[i]) return false;
    return true;
  }

 private:
  struct Vector {
    std::int64_t n;
  };
  explicit Shape(Vector v) noexcept : ndim_(1) {
    dims_[0] = v.n;
    dims_[1] = 0;
  }

  // Every call copies views several times, so only used dimensions are copied: the first two, and
  // others if there are more.
  void assign(const Shape& other) noexcept {
    dims_[0] = other.dims_[0];
    dims_[1] = other.dims_[1];
    row_numel_ = other.row_numel_;
    ndim_ = other.ndim_;
    for (std::size_t i = 2; i < other.ndim_; ++i) dims_[i] = other.dims_[i];
  }

  std::int64_t row_numel_ = 1;
  std::size_t ndim_ = 0;
  std::int64_t dims_[max_dims];  // Not initialised beyond ndim_, except the first two.
};

/// "[2, 3]".
std::string to_string(const Shape& shape);

}  // namespace tutti
