#include "support/array.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "support/dtypes.hpp"

namespace tutti::test {

namespace {

// One element of the widest type: the array stays aligned to its elements, not to a vector.
constexpr std::size_t guard_bytes = 16;
constexpr std::byte guard_byte{0xA9};
constexpr std::byte poison_byte{0x5B};

template <typename T>
bool is_nan(T value) {
  if constexpr (is_complex_type<T>) return is_nan(value.real()) || is_nan(value.imag());
  if constexpr (is_float_type<T>) return Wide<T>(value) != Wide<T>(value);
  return false;
}

template <typename T>
std::string show(T value) {
  if constexpr (is_float_type<T>) {
    return fmt::format("{} ({:a})", Wide<T>(value), Wide<T>(value));
  } else if constexpr (is_complex_type<T>) {
    return show(value.real()) + " + i " + show(value.imag());
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else {
    return fmt::format("{}", +value);
  }
}

testing::AssertionResult compare(const Array& got, const Array& want, bool any_nan) {
  if (got.dtype() != want.dtype())
    return testing::AssertionFailure()
           << "differs: dtype " << name_of(got.dtype()) << ", not " << name_of(want.dtype());
  if (got.shape() != want.shape())
    return testing::AssertionFailure()
           << "differs: shape " << to_string(got.shape()) << ", not " << to_string(want.shape());
  // In one call: a sanitizer checks each access.
  if (got.bytes().empty() ||
      std::memcmp(got.bytes().data(), want.bytes().data(), got.bytes().size()) == 0)
    return testing::AssertionSuccess();
  return visit_dtype(got.dtype(), [&]<typename T>() -> testing::AssertionResult {
    std::int64_t wrong = 0;
    std::string first;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      const auto at = static_cast<std::size_t>(i) * sizeof(T);
      if (std::memcmp(got.bytes().data() + at, want.bytes().data() + at, sizeof(T)) == 0) continue;
      if (any_nan && is_nan(got.get<T>(i)) && is_nan(want.get<T>(i))) continue;
      if (++wrong <= 4)
        first += fmt::format(" [{}] {}, not {};", i, show(got.get<T>(i)), show(want.get<T>(i)));
    }
    if (wrong == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "differs in " << wrong << " of " << got.numel() << " elements:" << first;
  });
}

}  // namespace

Array::Array(DType dtype, const Shape& shape)
    : dtype_(dtype),
      shape_(shape),
      bytes_(static_cast<std::size_t>(shape.numel()) * size_of(dtype)) {}

Array Array::rows(std::int64_t first, std::int64_t count) const {
  Array part(dtype_, shape_.with_rows(count));
  const auto row = static_cast<std::size_t>(shape_.row_numel()) * size_of(dtype_);
  std::ranges::copy(
      bytes().subspan(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row),
      part.bytes_.begin());
  return part;
}

Array Array::reshaped(const Shape& shape) const {
  Array other(dtype_, shape);
  EXPECT_EQ(other.bytes_.size(), bytes_.size());
  other.bytes_ = bytes_;
  return other;
}

Array concat(std::span<const Array> parts) {
  std::int64_t rows = 0;
  for (const Array& part : parts) rows += part.shape().rows();
  Array all(parts[0].dtype(),
            parts[0].shape().ndim() == 0 ? Shape{rows} : parts[0].shape().with_rows(rows));
  auto to = all.bytes().begin();
  for (const Array& part : parts) to = std::ranges::copy(part.bytes(), to).out;
  return all;
}

testing::AssertionResult same(const Array& got, const Array& want) {
  return compare(got, want, true);
}

testing::AssertionResult same_bits(const Array& got, const Array& want) {
  return compare(got, want, false);
}

Buffer::Buffer(ProcessGroup& group, DType dtype, const Shape& shape)
    : memory_(&group.memory()),
      dtype_(dtype),
      shape_(shape),
      bytes_(static_cast<std::size_t>(shape.numel()) * size_of(dtype)) {
  const std::size_t total = bytes_ + 2 * guard_bytes;
  block_ = static_cast<std::byte*>(memory_->allocate(total, {}));
  std::vector<std::byte> image(total, guard_byte);
  std::fill_n(image.begin() + guard_bytes, bytes_, poison_byte);
  memory_->copy(block_, image.data(), total, {});
}

Buffer::Buffer(ProcessGroup& group, const Array& content)
    : Buffer(group, content.dtype(), content.shape()) {
  write(content);
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(other.memory_),
      block_(std::exchange(other.block_, nullptr)),
      dtype_(other.dtype_),
      shape_(other.shape_),
      bytes_(other.bytes_) {}

Buffer::~Buffer() {
  if (block_ != nullptr) memory_->release(block_, bytes_ + 2 * guard_bytes, {});
}

TensorView Buffer::view() const {
  return {block_ + guard_bytes, dtype_, shape_, memory_->device()};
}

TensorView Buffer::rows(std::int64_t first, std::int64_t count) const {
  const auto row = static_cast<std::size_t>(shape_.row_numel()) * size_of(dtype_);
  return {block_ + guard_bytes + static_cast<std::size_t>(first) * row, dtype_,
          shape_.with_rows(count), memory_->device()};
}

Array Buffer::read() const {
  std::vector<std::byte> image(bytes_ + 2 * guard_bytes);
  memory_->copy(image.data(), block_, image.size(), {});
  const auto is_guard = [](std::byte b) { return b == guard_byte; };
  EXPECT_TRUE(std::all_of(image.begin(), image.begin() + guard_bytes, is_guard))
      << "wrote before the array";
  EXPECT_TRUE(std::all_of(image.end() - guard_bytes, image.end(), is_guard))
      << "wrote behind the array";
  Array content(dtype_, shape_);
  std::copy_n(image.begin() + guard_bytes, bytes_, content.bytes().begin());
  return content;
}

void Buffer::write(const Array& content) const {
  EXPECT_EQ(content.bytes().size(), bytes_);
  if (bytes_ != 0) memory_->copy(block_ + guard_bytes, content.bytes().data(), bytes_, {});
}

}  // namespace tutti::test
