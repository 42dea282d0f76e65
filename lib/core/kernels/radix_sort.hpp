#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

// Sorts scores in linear time, by the bytes of their bit patterns. Times of radix_sort(), and in
// parentheses of Highway's vqsort with AVX-512: 100,000 doubles with their rows 0.80 ms (1.15 ms),
// a million 12 ms (14 ms), 100,000 floats with their rows 0.31 ms (0.31 ms). For keys without rows
// vqsort takes half the time.

namespace tutti::internal {

/// Returns an integer with the order of the scores: flips the sign bit, and all other bits of
/// negative scores. -0 is next below 0. Has no branch, because signs cannot be predicted.
inline std::uint32_t ordered_key(float score) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return bits ^ (-(bits >> 31) | std::uint32_t{1} << 31);
}
inline std::uint64_t ordered_key(double score) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(score);
  return bits ^ (-(bits >> 63) | std::uint64_t{1} << 63);
}
/// Inverts ordered_key().
inline float score_of(std::uint32_t key) noexcept {
  return std::bit_cast<float>(key ^ (((key >> 31) - 1) | std::uint32_t{1} << 31));
}
inline double score_of(std::uint64_t key) noexcept {
  return std::bit_cast<double>(key ^ (((key >> 63) - 1) | std::uint64_t{1} << 63));
}

template <typename T>
struct Unset : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Unset<U>;
  };
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    if constexpr (sizeof...(Args) == 0)
      ::new (static_cast<void*>(at)) U;
    else
      ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};
/// A vector with uninitialised elements, for large arrays that are written at once.
template <typename T>
using Raw = std::vector<T, Unset<T>>;

/// Sorts by key_of(item), an unsigned integer. The sort is stable. Makes one pass per byte, lowest
/// byte first, and skips bytes that are equal in all keys.
template <typename Item, typename KeyOf>
void radix_sort(Raw<Item>& items, const KeyOf& key_of) {
  using Key = decltype(key_of(items.front()));
  const auto byte = [&](const Item& item, std::size_t b) {
    return static_cast<std::size_t>(key_of(item) >> (8 * b) & 0xff);
  };
  std::array<std::array<std::size_t, 256>, sizeof(Key)> counts{};
  for (const auto& item : items)
    for (std::size_t b = 0; b < sizeof(Key); ++b) ++counts[b][byte(item, b)];
  Raw<Item> sorted(items.size());
  for (std::size_t b = 0; b < sizeof(Key) && !items.empty(); ++b) {
    auto& count = counts[b];
    if (count[byte(items.front(), b)] == items.size()) continue;
    std::size_t next = 0;
    for (auto& n : count) {
      const auto here = next;
      next += n;
      n = here;
    }
    for (const auto& item : items) sorted[count[byte(item, b)]++] = item;
    items.swap(sorted);
  }
}

}  // namespace tutti::internal
