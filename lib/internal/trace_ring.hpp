#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include <tutti/trace.hpp>

namespace tutti::internal {

/// The last calls of one kind. Written without a lock by any thread, read while it is written.
class TraceRing {
 public:
  static constexpr std::size_t length = 64;

  /// `index` counts without gaps; the returned key belongs to this entry until it is overwritten.
  void begin(std::uint64_t index, std::uint64_t seq, const Op& first, std::size_t ops, bool async,
             std::string_view name) noexcept;
  void end(std::uint64_t index, TraceEntry::State state) noexcept;
  /// Appends what is there, oldest first.
  void read(std::vector<TraceEntry>& out) const;

 private:
  // A slot is a sequence lock: `version` is (index + 1) * 4 + state, and 0 while it is written.
  struct Slot {
    std::atomic<std::uint64_t> version{0};
    std::atomic<std::uint64_t> seq{0};
    std::atomic<std::uint64_t> what{0};  // Operation, dtype, reduce op, async, number of ops.
    std::atomic<std::int64_t> bytes{0};
    std::atomic<std::int64_t> started{0};  // Nanoseconds of the steady clock.
    std::atomic<std::int32_t> peer{-1};
    std::array<std::atomic<std::uint64_t>, 2> name{};
  };
  std::array<Slot, length> slots_;
};

}  // namespace tutti::internal
