#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/backend/op.hpp>
#include <tutti/trace.hpp>

namespace tutti::internal {

/// The time of the coarse clock, which costs a fifth of the precise clock and is accurate to a
/// timer tick. Both have the same epoch.
inline std::int64_t coarse_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

/// A group's last collectives, or its last sends and receives. Any thread writes without a lock,
/// even while another thread reads. The writers are inline, because every call executes them.
class TraceRing {
 public:
  static constexpr std::size_t length = 64;

  /// Records the start of a call. `index`: its number in this ring, without gaps. `ops`: the number
  /// of operations, of which `first` is the first.
  [[gnu::always_inline]] void begin(std::uint64_t index, std::uint64_t seq, Operation kind,
                                    const Op& first, std::size_t ops, bool async,
                                    std::string_view name) noexcept {
    constexpr auto release = std::memory_order_release;
    auto& slot = slots_[index % length];
    slot.version.store(0, std::memory_order_relaxed);  // Ordered before the release stores below.
    const bool has_in = first.in.data != nullptr || first.out.data == nullptr;
    const auto dtype = has_in ? first.in.dtype : first.out.dtype;
    slot.seq.store(seq, release);
    slot.what.store(static_cast<std::uint64_t>(kind) |
                        (static_cast<std::uint64_t>(dtype) & 0x1f) << 4 |
                        (static_cast<std::uint64_t>(first.reduce.kind) & 0xf) << 9 |
                        static_cast<std::uint64_t>(async) << 13 |
                        static_cast<std::uint64_t>(std::min<std::size_t>(ops, 0xffff)) << 16 |
                        static_cast<std::uint64_t>(
                            static_cast<std::uint32_t>(first.root >= 0 ? first.root : first.peer))
                            << 32,
                    release);
    slot.bytes.store(kind == Operation::barrier
                         ? 0
                         : static_cast<std::int64_t>(has_in ? first.in.bytes() : first.out.bytes()),
                     release);
    slot.started.store(coarse_now(), release);
    if (name.empty()) [[likely]] {
      slot.name[0].store(0, release);
    } else {
      std::array<std::uint64_t, 2> words{};
      std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof words));
      slot.name[0].store(words[0], release);
      slot.name[1].store(words[1], release);
    }
    slot.version.store(index + 1, release);
  }

  /// Records how call `index` ended. Uses a plain load and store, because another locked
  /// instruction would cost more than all of begin(). Does nothing if a later call has taken the
  /// slot. If a call takes the slot between load and store, `ended` describes an older version, and
  /// the newer entry reads as running.
  void end(std::uint64_t index, TraceEntry::State state) noexcept {
    auto& slot = slots_[index % length];
    if (slot.version.load(std::memory_order_relaxed) == index + 1)
      slot.ended.store(ended_of(index, state), std::memory_order_release);
  }

  /// Appends the entries, oldest first.
  void read(std::vector<TraceEntry>& out) const;
  /// Replaces the entries by those of a copy of a ring's memory. False if an entry is not in the
  /// slot of its number; the other fields may have any values.
  bool load(std::span<const std::byte> ring) noexcept;

 private:
  static constexpr std::uint64_t ended_of(std::uint64_t index, TraceEntry::State state) noexcept {
    return (index + 1) << 2 | static_cast<std::uint64_t>(state);
  }

  // A slot is a sequence lock: `version` is index + 1, and 0 during a write.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> version{0};
    std::atomic<std::uint64_t> ended{0};  // ended_of() the last call that ended in this slot.
    std::atomic<std::uint64_t> seq{0};
    std::atomic<std::uint64_t> what{0};  // Operation, dtype, reduce op, async, ops, peer.
    std::atomic<std::int64_t> bytes{0};
    std::atomic<std::int64_t> started{0};  // Nanoseconds of the steady clock.
    std::array<std::atomic<std::uint64_t>, 2> name{};
  };
  std::array<Slot, length> slots_;
};

}  // namespace tutti::internal
