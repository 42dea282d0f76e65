#include <tutti/trace.hpp>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "backend/fingerprint.hpp"
#include "group/trace_ring.hpp"

namespace tutti::internal {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;

}  // namespace

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
    e.operation = static_cast<Operation>(what & 0xf);
    e.dtype = static_cast<DType>(what >> 4 & 0x1f);
    e.reduce = static_cast<ReduceOp::Kind>(what >> 9 & 0xf);
    e.async = (what >> 13 & 1) != 0;
    e.ops = static_cast<std::uint32_t>(what >> 16 & 0xffff);
    e.peer = static_cast<std::int32_t>(static_cast<std::uint32_t>(what >> 32));
    e.bytes = slot.bytes.load(acquire);
    e.started =
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(slot.started.load(acquire)));
    std::array<char, 16> name{};
    const std::array words{slot.name[0].load(acquire), slot.name[1].load(acquire)};
    std::memcpy(name.data(), words.data(), name.size());
    e.name.assign(name.data(), ::strnlen(name.data(), name.size()));
    const auto ended = slot.ended.load(acquire);
    e.state = ended >> 2 == version ? static_cast<TraceEntry::State>(ended & 3)
                                    : TraceEntry::State::running;
    // Leaves out a slot that was overwritten during the read. The next snapshot has the newer call.
    if (slot.version.load(relaxed) == version) found.push_back({version, std::move(e)});
  }
  std::ranges::sort(found, {}, &Found::index);
  for (auto& f : found) out.push_back(std::move(f.entry));
}

bool TraceRing::load(std::span<const std::byte> ring) noexcept {
  for (std::size_t i = 0; i < length; ++i) {
    std::array<std::uint64_t, sizeof(Slot) / 8> words;
    std::memcpy(words.data(), ring.data() + i * sizeof(Slot), sizeof(Slot));
    if (words[0] != 0 && (words[0] - 1) % length != i) return false;
    auto& slot = slots_[i];
    slot.version.store(words[0], relaxed);
    slot.ended.store(words[1], relaxed);
    slot.seq.store(words[2], relaxed);
    slot.what.store(words[3], relaxed);
    slot.bytes.store(static_cast<std::int64_t>(words[4]), relaxed);
    slot.started.store(static_cast<std::int64_t>(words[5]), relaxed);
    slot.name[0].store(words[6], relaxed);
    slot.name[1].store(words[7], relaxed);
  }
  return true;
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

std::string to_string(const TraceEntry& e) {
  std::string text = fmt::format("{} #{}", name_of(e.operation), e.seq);
  if (internal::is_reduction(e.operation)) text += fmt::format(" {}", name_of(e.reduce));
  if (e.operation != Operation::barrier) text += fmt::format(" {} {} B", name_of(e.dtype), e.bytes);
  if (e.peer >= 0)
    text += fmt::format(" {} {}", is_point_to_point(e.operation) ? "peer" : "root", e.peer);
  if (e.peer == any_peer) text += " any_peer";
  if (e.ops > 1) text += fmt::format(" (first of {})", e.ops);
  if (!e.name.empty()) text += fmt::format(" '{}'", e.name);
  constexpr std::string_view states[] = {"running", "done", "failed", "refused"};
  return text + fmt::format("{} {}", e.async ? " async" : "", states[static_cast<int>(e.state)]);
}

}  // namespace tutti
