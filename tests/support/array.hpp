#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>
#include <tutti/tensor.hpp>

namespace tutti::test {

/// An array of any dtype in host memory: an input or an expected result of a call. A value.
class Array {
 public:
  Array() = default;
  Array(DType dtype, const Shape& shape);  ///< Zeros.

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return shape_.numel(); }
  std::span<std::byte> bytes() { return bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  template <typename T>
  T get(std::int64_t i) const {
    if constexpr (std::is_same_v<T, bool>) {
      return bytes_[static_cast<std::size_t>(i)] != std::byte{0};
    } else {
      T value;
      std::memcpy(static_cast<void*>(&value),
                  bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
      return value;
    }
  }
  template <typename T>
  void put(std::int64_t i, T value) {
    if constexpr (std::is_same_v<T, bool>) {
      bytes_[static_cast<std::size_t>(i)] = std::byte{value};
    } else {
      std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  }

  Array rows(std::int64_t first, std::int64_t count) const;
  Array reshaped(const Shape& shape) const;

 private:
  DType dtype_ = DType::f32;
  Shape shape_{0};
  std::vector<std::byte> bytes_;
};

template <typename T>
Array array_of(std::span<const T> values) {
  Array array(dtype_of<T>, Shape{static_cast<std::int64_t>(values.size())});
  std::int64_t i = 0;
  for (const T value : values) array.put<T>(i++, value);
  return array;
}
template <typename T>
Array array_of(std::initializer_list<T> values) {
  return array_of(std::span<const T>(values.begin(), values.size()));
}
template <typename T>
std::vector<T> values_of(const Array& array) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < array.shape().numel(); ++i) values.push_back(array.get<T>(i));
  return values;
}

/// The concatenation along dimension 0. All arrays have the same row shape.
Array concat(std::span<const Array> parts);

/// Equal in dtype, shape and every bit, except that any NaN equals any NaN.
testing::AssertionResult same(const Array& got, const Array& want);
/// Equal in dtype, shape and every bit.
testing::AssertionResult same_bits(const Array& got, const Array& want);

/// An array in a group's own memory, between two guards which read() checks. It starts as poison
/// or as a copy of an Array.
class Buffer {
 public:
  Buffer(ProcessGroup& group, DType dtype, const Shape& shape);
  Buffer(ProcessGroup& group, const Array& content);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  TensorView view() const;
  /// `count` rows of it from row `first` on.
  TensorView rows(std::int64_t first, std::int64_t count) const;
  operator TensorView() const { return view(); }
  operator ConstTensorView() const { return view(); }

  /// The current content. Fails the test if a guard was overwritten.
  Array read() const;
  void write(const Array& content) const;

 private:
  Memory* memory_;
  std::byte* block_;
  DType dtype_;
  Shape shape_;
  std::size_t bytes_;
};

}  // namespace tutti::test
