#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace tutti::internal {

/// A 64-bit hash, equal on every host, for fingerprints and saved states. One multiplication per
/// 64-bit word, because every call computes a hash.
class Hash {
 public:
  constexpr void add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15U;
    value_ ^= value_ >> 32;
  }
  void add(std::string_view text) noexcept {
    add(text.size());
    while (!text.empty()) {
      std::uint64_t word = 0;
      const auto n = text.size() < sizeof word ? text.size() : sizeof word;
      std::memcpy(&word, text.data(), n);
      if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
      add(word);
      text.remove_prefix(n);
    }
  }
  constexpr void add(std::span<const std::int64_t> words) noexcept {
    for (const auto word : words) add(static_cast<std::uint64_t>(word));
  }
  constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0x243f6a8885a308d3U;
};

}  // namespace tutti::internal
