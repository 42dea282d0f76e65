#include "group_calls.hpp"

#include <string>

#include <fmt/format.h>

namespace tutti::backend::mesh {

void PostedMessages::add(std::uint64_t pair, const Op& op) noexcept {
  constexpr auto release = std::memory_order_release;
  const std::lock_guard lock(writer_);
  const auto index = next_.fetch_add(1, std::memory_order_relaxed);
  auto& slot = slots_[index % length];
  const bool sends = op.kind == Operation::send;
  slot.version.store(0, std::memory_order_relaxed);  // Ordered before the release stores below.
  slot.pair.store(pair, release);
  slot.fingerprint.store(op.fingerprint, release);
  slot.what.store(static_cast<std::uint64_t>(op.kind) |
                      static_cast<std::uint64_t>(sends ? op.in.dtype : op.out.dtype) << 8 |
                      static_cast<std::uint64_t>(static_cast<std::uint32_t>(op.peer)) << 32,
                  release);
  slot.tag.store(static_cast<std::uint64_t>(op.tag), release);
  slot.count.store((sends ? op.in.shape : op.out.shape).numel(), release);
  slot.version.store(index + 1, release);
}

void PostedMessages::remove(std::uint64_t pair) noexcept {
  const std::lock_guard lock(writer_);
  for (auto& slot : slots_)
    if (slot.pair.load(std::memory_order_relaxed) == pair)
      slot.version.store(0, std::memory_order_release);
}

std::optional<internal::MessageSide> PostedMessages::find(std::uint64_t pair,
                                                          const internal::GroupNames& names) const {
  constexpr auto acquire = std::memory_order_acquire;
  for (const auto& slot : slots_) {
    const auto version = slot.version.load(acquire);
    if (version == 0 || slot.pair.load(acquire) != pair) continue;
    internal::MessageSide side{.pair = pair, .fingerprint = slot.fingerprint.load(acquire)};
    const auto what = slot.what.load(acquire);
    const auto tag = static_cast<int>(slot.tag.load(acquire));
    const auto count = slot.count.load(acquire);
    if (slot.version.load(std::memory_order_relaxed) != version) continue;
    const auto kind = static_cast<Operation>(what & 0xff);
    const auto peer = static_cast<int>(what >> 32);
    side.text = fmt::format("{} {} [{}] {} {} tag {}", name_of(kind),
                            name_of(static_cast<DType>(what >> 8 & 0xff)), count,
                            kind == Operation::send ? "to" : "from",
                            peer == any_peer ? "any_peer" : std::to_string(names(peer)), tag);
    return side;
  }
  return std::nullopt;
}

}  // namespace tutti::backend::mesh
