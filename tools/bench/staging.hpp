#pragma once

#include <cstddef>
#include <functional>

#include <tutti/memory.hpp>

// How the tool gets at the bytes of arrays in any memory. On the host they are used where they
// are; elsewhere they are copied, piece by piece, in order on the default stream, and the host
// waits for each.

namespace tutti::tool {

inline bool on_host(const Memory& memory) noexcept {
  return memory.device().type == DeviceType::cpu;
}

/// fill(piece, at, bytes) is asked for the bytes [at, at + bytes) of `to`.
void write(Memory& memory, void* to, std::size_t bytes,
           const std::function<void(std::byte* piece, std::size_t at, std::size_t bytes)>& fill);

/// look(piece, at, bytes) is shown the bytes [at, at + bytes) of `from`.
void read(
    Memory& memory, const void* from, std::size_t bytes,
    const std::function<void(const std::byte* piece, std::size_t at, std::size_t bytes)>& look);

}  // namespace tutti::tool
