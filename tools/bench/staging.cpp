#include "bench/staging.hpp"

#include <algorithm>
#include <vector>

namespace tutti::tool {
namespace {

constexpr std::size_t piece_bytes = std::size_t{4} << 20;  // A multiple of every dtype's size.

}  // namespace

void write(Memory& memory, void* to, std::size_t bytes,
           const std::function<void(std::byte*, std::size_t, std::size_t)>& fill) {
  auto* target = static_cast<std::byte*>(to);
  if (on_host(memory)) return fill(target, 0, bytes);
  std::vector<std::byte> piece(std::min(bytes, piece_bytes));
  for (std::size_t at = 0; at < bytes; at += piece.size()) {
    const std::size_t n = std::min(piece.size(), bytes - at);
    fill(piece.data(), at, n);
    memory.copy(target + at, piece.data(), n, {});
  }
}

void read(Memory& memory, const void* from, std::size_t bytes,
          const std::function<void(const std::byte*, std::size_t, std::size_t)>& look) {
  const auto* source = static_cast<const std::byte*>(from);
  if (on_host(memory)) return look(source, 0, bytes);
  std::vector<std::byte> piece(std::min(bytes, piece_bytes));
  for (std::size_t at = 0; at < bytes; at += piece.size()) {
    const std::size_t n = std::min(piece.size(), bytes - at);
    memory.copy(piece.data(), source + at, n, {});
    look(piece.data(), at, n);
  }
}

void wait_for_default_stream(Memory& memory, const void* array) {
  std::byte here{};
  memory.copy(&here, array, 1, {});
}

}  // namespace tutti::tool
