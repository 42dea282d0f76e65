#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "group/trace_ring.hpp"

namespace tutti::internal {

/// The two rings of a group.
struct TraceRings {
  TraceRing collectives;
  TraceRing messages;
};

/// The layout of a trace file, in the byte order of the machine. Texts end with a zero.
struct TraceLayout {
  static constexpr std::uint64_t known_magic =
      0x3163726974747574;  // "tuttirc1"; the digit counts layouts.

  std::atomic<std::uint64_t> magic{0};  // Written last.
  std::uint64_t made = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int64_t pid = 0;
  std::int64_t opened = 0;       // Nanoseconds of the system clock.
  std::int64_t wall_offset = 0;  // System clock minus steady clock, in nanoseconds.
  std::atomic<std::uint64_t> closed{0};
  std::array<char, 136> host{};
  std::array<char, 320> group{};
  TraceRings rings;
};
// Without padding: every byte of the file has a meaning.
static_assert(sizeof(TraceLayout) == 512 + 2 * 64 * TraceRing::length);
static_assert(std::is_standard_layout_v<TraceLayout>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace tutti::internal
