#pragma once

#include <cstddef>
#include <functional>

#include <tutti/memory.hpp>

// Access to the bytes of arrays in any memory. Host arrays are accessed in place; others are copied
// piece by piece, in order on the default stream, and the host waits for each copy.

namespace tutti::tool {

inline bool on_host(const Memory& memory) noexcept {
  return memory.device().type == DeviceType::cpu;
}

/// Calls fill(piece, at, bytes) for bytes [at, at + bytes) of `to`.
void write(Memory& memory, void* to, std::size_t bytes,
           const std::function<void(std::byte* piece, std::size_t at, std::size_t bytes)>& fill);

/// Calls look(piece, at, bytes) with bytes [at, at + bytes) of `from`.
void read(
    Memory& memory, const void* from, std::size_t bytes,
    const std::function<void(const std::byte* piece, std::size_t at, std::size_t bytes)>& look);

/// Waits for the work queued on the default stream: copies the byte at `array`, in order behind
/// that work. Work::wait() polls at intervals, which is too coarse for a clock.
void wait_for_default_stream(Memory& memory, const void* array);

}  // namespace tutti::tool
