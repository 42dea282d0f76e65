#include <tutti/trace.hpp>

#include <time.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "internal/fingerprint.hpp"
#include "internal/trace_ring.hpp"

namespace tutti {
namespace internal {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto release = std::memory_order_release;
constexpr auto acquire = std::memory_order_acquire;

/// A fifth of the price of the precise clock, exact to a timer tick.
std::int64_t coarse_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

constexpr std::uint64_t version_of(std::uint64_t index, TraceEntry::State state) noexcept {
  return (index + 1) << 2 | static_cast<std::uint64_t>(state);
}

}  // namespace

void TraceRing::begin(std::uint64_t index, std::uint64_t seq, const Op& first, std::size_t ops,
                      bool async, std::string_view name) noexcept {
  auto& slot = slots_[index % length];
  slot.version.store(0, relaxed);  // The release stores below keep it before them.
  const bool has_in = first.in.data != nullptr || first.out.data == nullptr;
  const auto dtype = has_in ? first.in.dtype : first.out.dtype;
  slot.seq.store(seq, release);
  slot.what.store(static_cast<std::uint64_t>(first.kind) | static_cast<std::uint64_t>(dtype) << 8 |
                      static_cast<std::uint64_t>(first.reduce.kind) << 16 |
                      static_cast<std::uint64_t>(async) << 24 |
                      static_cast<std::uint64_t>(ops) << 32,
                  release);
  slot.bytes.store(static_cast<std::int64_t>(has_in ? first.in.bytes() : first.out.bytes()),
                   release);
  slot.started.store(coarse_now(), release);
  slot.peer.store(first.root >= 0 ? first.root : first.peer, release);
  std::array<std::uint64_t, 2> words{};
  if (!name.empty()) std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof words));
  slot.name[0].store(words[0], release);
  slot.name[1].store(words[1], release);
  slot.version.store(version_of(index, TraceEntry::State::running), release);
}

void TraceRing::end(std::uint64_t index, TraceEntry::State state) noexcept {
  auto& version = slots_[index % length].version;
  auto mine = version_of(index, TraceEntry::State::running);
  // Only if 64 later calls have not taken the slot.
  version.compare_exchange_strong(mine, version_of(index, state), std::memory_order_release,
                                  relaxed);
}

void TraceRing::read(std::vector<TraceEntry>& out) const {
  struct Found {
    std::uint64_t index;
    TraceEntry entry;
  };
  std::vector<Found> found;
  for (const auto& slot : slots_) {
    const auto version = slot.version.load(acquire);
    if (version == 0) continue;
    TraceEntry e;
    e.seq = slot.seq.load(acquire);
    const auto what = slot.what.load(acquire);
    e.operation = static_cast<Operation>(what & 0xff);
    e.dtype = static_cast<DType>(what >> 8 & 0xff);
    e.reduce = static_cast<ReduceOp::Kind>(what >> 16 & 0xff);
    e.async = (what >> 24 & 1) != 0;
    e.ops = static_cast<std::uint32_t>(what >> 32);
    e.bytes = slot.bytes.load(acquire);
    e.started =
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(slot.started.load(acquire)));
    e.peer = slot.peer.load(acquire);
    std::array<char, 16> name{};
    const std::array words{slot.name[0].load(acquire), slot.name[1].load(acquire)};
    std::memcpy(name.data(), words.data(), name.size());
    e.name.assign(name.data(), ::strnlen(name.data(), name.size()));
    e.state = static_cast<TraceEntry::State>(version & 3);
    // Written again meanwhile: the newer call will be in the next snapshot. A state that moved on
    // is no reason to drop it.
    if (slot.version.load(relaxed) >> 2 == version >> 2)
      found.push_back({version >> 2, std::move(e)});
  }
  std::ranges::sort(found, {}, &Found::index);
  for (auto& f : found) out.push_back(std::move(f.entry));
}

}  // namespace internal

std::string to_string(const TraceEntry& e) {
  std::string text = fmt::format("{} #{}", name_of(e.operation), e.seq);
  if (internal::is_reduction(e.operation)) text += fmt::format(" {}", name_of(e.reduce));
  if (e.operation != Operation::barrier) text += fmt::format(" {} {} B", name_of(e.dtype), e.bytes);
  if (e.peer >= 0)
    text += fmt::format(" {} {}", is_point_to_point(e.operation) ? "peer" : "root", e.peer);
  if (e.ops > 1) text += fmt::format(" (first of {})", e.ops);
  if (!e.name.empty()) text += fmt::format(" '{}'", e.name);
  constexpr std::string_view states[] = {"running", "done", "failed", "refused"};
  return text + fmt::format("{} {}", e.async ? " async" : "", states[static_cast<int>(e.state)]);
}

}  // namespace tutti
