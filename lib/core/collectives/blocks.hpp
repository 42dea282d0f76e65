#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include <tutti/rows.hpp>

#include "collectives/wire.hpp"

// Memory of a call: scratch memory, and the blocks of the call's arrays.

namespace tutti::collectives {

using Bytes = std::byte*;

constexpr std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

/// Casts away const: the data of a Flow is never written when it is sent.
inline Bytes writable(const void* data) {
  return const_cast<Bytes>(static_cast<const std::byte*>(data));
}

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

/// The offset of part `i` if an array of `bytes` bytes is divided at cache lines into `parts`
/// nearly equal parts.
constexpr std::size_t cut(std::size_t bytes, std::size_t parts, std::size_t i) {
  const auto lines = (bytes + 63) / 64;
  return std::min(bytes, (lines / parts * i + std::min(i, lines % parts)) * 64);
}

/// Hands out a call's scratch memory: up to 16 pieces, of `bytes` bytes together.
class Arena {
 public:
  Arena(Wire& wire, std::size_t bytes) : at_(wire.scratch(bytes + slack)) {}
  /// Returns the next `n` elements, uninitialised.
  template <typename T = std::byte>
  std::span<T> take(std::size_t n) {
    auto* from = at_;
    at_ += (n * sizeof(T) + 63) / 64 * 64;
    return {reinterpret_cast<T*>(from), n};
  }

 private:
  static constexpr std::size_t slack = 64 * 16;  // For the rounding of up to 16 pieces.

  std::byte* at_;
};

/// Offset and size in bytes of each rank's block of an array.
class Blocks {
 public:
  static std::size_t memory(int size) { return (index(size) + 1) * sizeof(std::size_t) + 64; }

  Blocks(Arena& arena, const Rows& rows, int size, std::size_t row_bytes)
      : offsets_(arena.take<std::size_t>(index(size) + 1)) {
    std::size_t offset = 0;
    for (int r = 0; r < size; ++r) {
      offsets_[index(r)] = offset;
      offset += static_cast<std::size_t>(rows[r]) * row_bytes;
    }
    offsets_[index(size)] = offset;
  }
  /// Divides an array at cache lines into nearly equal blocks.
  Blocks(Arena& arena, std::size_t bytes, int size)
      : offsets_(arena.take<std::size_t>(index(size) + 1)) {
    for (std::size_t r = 0; r <= index(size); ++r) offsets_[r] = cut(bytes, index(size), r);
  }
  std::size_t offset(std::size_t r) const { return offsets_[r]; }
  std::size_t offset(int r) const { return offset(index(r)); }
  std::size_t bytes(std::size_t r) const { return offsets_[r + 1] - offsets_[r]; }
  std::size_t bytes(int r) const { return bytes(index(r)); }

 private:
  std::span<std::size_t> offsets_;
};

}  // namespace tutti::collectives
