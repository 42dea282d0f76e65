#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/error.hpp>

// Encoding of messages between ranks, records in the store and saved states: numbers of fixed
// width, little-endian on every host, without padding.

namespace tutti::internal {

template <typename T>
concept Number = (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, double>;

/// Appends numbers, strings and lists to a buffer.
class Writer {
 public:
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

  Writer& u8(std::uint8_t value) { return number(value); }
  Writer& u16(std::uint16_t value) { return number(value); }
  Writer& u32(std::uint32_t value) { return number(value); }
  Writer& u64(std::uint64_t value) { return number(value); }
  Writer& i32(std::int32_t value) { return number(value); }
  Writer& i64(std::int64_t value) { return number(value); }
  Writer& f64(double value) { return number(value); }

  /// Writes a count as u32, then bytes, a string or integers. @throws Error count_overflow.
  [[gnu::visibility("default")]] Writer& block(std::span<const std::byte> bytes);
  Writer& text(std::string_view text) { return block(std::as_bytes(std::span(text))); }
  [[gnu::visibility("default")]] Writer& list(std::span<const std::int64_t> values);

  /// Writes bytes and numbers without a count, which the reader must know.
  [[gnu::visibility("default")]] Writer& raw(std::span<const std::byte> bytes);
  Writer& raw(std::string_view text) { return raw(std::as_bytes(std::span(text))); }
  template <Number T>
  Writer& numbers(const std::vector<T>& values) {
    for (const T value : values) number(value);
    return *this;
  }

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::vector<std::byte> take() noexcept { return std::exchange(bytes_, {}); }
  std::string_view view() const noexcept {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  [[gnu::visibility("default")]] Writer& count(std::size_t size);
  template <Number T>
  Writer& number(T value) {
    auto bits = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
    if constexpr (std::endian::native != std::endian::little) std::ranges::reverse(bits);
    return raw(bits);  // Not inline: GCC 12 at -O3 warns falsely about the inlined insertion.
  }
  std::vector<std::byte> bytes_;
};

/// Reads the bytes of a Writer without trusting them: each function throws Error if too few bytes
/// are left, and allocates no more than are left. Borrows the bytes; returned strings and blocks
/// refer to them.
class Reader {
 public:
  /// Errors have this code and call the bytes `what`.
  Reader(std::span<const std::byte> bytes, Errc code, std::string_view what) noexcept
      : rest_(bytes), code_(code), what_(what) {}
  Reader(std::string_view bytes, Errc code, std::string_view what) noexcept
      : Reader(std::as_bytes(std::span(bytes)), code, what) {}

  std::uint8_t u8() { return number<std::uint8_t>(); }
  std::uint16_t u16() { return number<std::uint16_t>(); }
  std::uint32_t u32() { return number<std::uint32_t>(); }
  std::uint64_t u64() { return number<std::uint64_t>(); }
  std::int32_t i32() { return number<std::int32_t>(); }
  std::int64_t i64() { return number<std::int64_t>(); }
  double f64() { return number<double>(); }

  std::span<const std::byte> block() { return raw(u32()); }
  [[gnu::visibility("default")]] std::string_view text();
  std::vector<std::int64_t> list() { return numbers<std::int64_t>(u32()); }

  std::span<const std::byte> raw(std::uint64_t size) { return items(size, 1); }
  /// Reads `count` items of `size` bytes each.
  [[gnu::visibility("default")]] std::span<const std::byte> items(std::uint64_t count,
                                                                  std::size_t size);
  template <Number T>
  std::vector<T> numbers(std::uint64_t count) {
    auto from = items(count, sizeof(T));
    std::vector<T> values;
    values.reserve(from.size() / sizeof(T));
    for (; !from.empty(); from = from.subspan(sizeof(T))) values.push_back(load<T>(from.data()));
    return values;
  }

  std::size_t left() const noexcept { return rest_.size(); }
  /// @throws Error unless all bytes have been read.
  [[gnu::visibility("default")]] void end() const;

 private:
  template <Number T>
  static T load(const std::byte* from) {
    std::array<std::byte, sizeof(T)> bits;
    if constexpr (std::endian::native == std::endian::little)
      std::copy_n(from, sizeof(T), bits.begin());
    else
      std::reverse_copy(from, from + sizeof(T), bits.begin());
    return std::bit_cast<T>(bits);
  }
  template <Number T>
  T number() {
    return load<T>(items(1, sizeof(T)).data());
  }

  std::span<const std::byte> rest_;
  Errc code_;
  std::string_view what_;
};

}  // namespace tutti::internal
