#include "backend/call_history.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "backend/fingerprint.hpp"
#include "backend/record.hpp"
#include "values/hash.hpp"

namespace tutti::internal {
namespace {

/// Packs the kind, dtype, reduction, number of operations and root into one word.
std::uint64_t pack(const Op& first, std::size_t ops) noexcept {
  const auto dtype =
      first.in.data != nullptr || first.out.data == nullptr ? first.in.dtype : first.out.dtype;
  return static_cast<std::uint64_t>(first.kind) | static_cast<std::uint64_t>(dtype) << 8 |
         static_cast<std::uint64_t>(first.reduce.kind) << 16 |
         static_cast<std::uint64_t>(std::min<std::size_t>(ops, 0xff)) << 24 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(first.root)) << 32;
}

void unpack(std::uint64_t what, PastCall& call) noexcept {
  call.operation = static_cast<Operation>(what & 0xff);
  call.dtype = static_cast<DType>(what >> 8 & 0xff);
  call.reduce = static_cast<ReduceOp::Kind>(what >> 16 & 0xff);
  call.ops = static_cast<std::uint32_t>(what >> 24 & 0xff);
  call.root = static_cast<std::int32_t>(what >> 32);
}

std::uint64_t chain(std::uint64_t before, std::uint64_t call) noexcept {
  Hash hash;
  hash.add(before);
  hash.add(call);
  return hash.value();
}

}  // namespace

void CallHistory::write(Slot& slot, const Call& call, const Op& first, std::size_t ops) noexcept {
  slot.version.store(0, std::memory_order_relaxed);  // Ordered before the release stores below.
  slot.seq.store(call.seq, std::memory_order_release);
  slot.fingerprint.store(call.fingerprint, std::memory_order_release);
  slot.before.store(chain_, std::memory_order_release);
  slot.what.store(pack(first, ops), std::memory_order_release);
  slot.bytes.store(
      static_cast<std::int64_t>(first.in.data != nullptr ? first.in.bytes() : first.out.bytes()),
      std::memory_order_release);
  slot.version.store(++written_, std::memory_order_release);
}

std::uint64_t CallHistory::begin(std::span<const Op> ops, const Call& call) noexcept {
  if (present_ != 0) chain_ = chain(chain_, present_);
  present_ = chain(0, call.fingerprint) | 1;
  seq_ = call.seq;
  const Op* shown = ops.data();
  for (const auto& op : ops)
    if (is_point_to_point(shown->kind)) shown = &op;
  const auto index = count_.load(std::memory_order_relaxed);
  write(slots_[index % length], call, *shown, ops.size());
  if (call.seq >= next_mark_) {
    const auto mark = call.seq / mark_distance;
    if (call.seq % mark_distance == 0) write(marks_[mark % length], call, *shown, ops.size());
    next_mark_ = (mark + 1) * mark_distance;
  }
  count_.store(index + 1, std::memory_order_release);
  return chain_;
}

void CallHistory::take_back(std::uint64_t seq) noexcept {
  if (present_ == 0 || seq != seq_) return;
  present_ = 0;
  const auto last = count_.load(std::memory_order_relaxed) - 1;
  slots_[last % length].version.store(0, std::memory_order_release);
  count_.store(last, std::memory_order_release);
}

std::optional<PastCall> CallHistory::read(const Slot& slot) {
  const auto version = slot.version.load(std::memory_order_acquire);
  PastCall call;
  call.seq = slot.seq.load(std::memory_order_acquire);
  call.fingerprint = slot.fingerprint.load(std::memory_order_acquire);
  call.before = slot.before.load(std::memory_order_acquire);
  unpack(slot.what.load(std::memory_order_acquire), call);
  call.bytes = slot.bytes.load(std::memory_order_acquire);
  if (version == 0 || slot.version.load(std::memory_order_relaxed) != version) return std::nullopt;
  return call;
}

PastCalls CallHistory::take() const {
  PastCalls taken{.rank = rank_};
  for (const auto& slot : slots_)
    if (auto call = read(slot)) taken.calls.push_back(std::move(*call));
  std::ranges::sort(taken.calls, {}, &PastCall::seq);
  for (const auto& slot : marks_)
    if (const auto call = read(slot)) taken.marks.push_back({call->seq, call->before});
  return taken;
}

bool CallHistory::has_changed() noexcept {
  return std::exchange(seen_, count_.load(std::memory_order_acquire)) != seen_;
}

Bytes encode(const PastCalls& calls) {
  Writer out;
  out.i32(calls.rank).u32(static_cast<std::uint32_t>(calls.calls.size()));
  for (const auto& call : calls.calls) {
    out.u64(call.seq).u64(call.fingerprint).u64(call.before);
    out.u8(static_cast<std::uint8_t>(call.operation)).u8(static_cast<std::uint8_t>(call.dtype));
    out.u8(static_cast<std::uint8_t>(call.reduce)).u32(call.ops).i32(call.root).i64(call.bytes);
    out.text(call.text);
  }
  out.u32(static_cast<std::uint32_t>(calls.marks.size()));
  for (const auto& [seq, before] : calls.marks) out.u64(seq).u64(before);
  return out.take();
}

PastCalls decode_past_calls(const Bytes& bytes) {
  Reader in(bytes, Errc::mismatch, "a peer's last calls");
  PastCalls calls{.rank = in.i32()};
  for (auto left = in.u32(); left > 0; --left) {
    auto& call = calls.calls.emplace_back();
    call.seq = in.u64();
    call.fingerprint = in.u64();
    call.before = in.u64();
    call.operation = static_cast<Operation>(in.u8());
    call.dtype = static_cast<DType>(in.u8());
    call.reduce = static_cast<ReduceOp::Kind>(in.u8());
    call.ops = in.u32();
    call.root = in.i32();
    call.bytes = in.i64();
    call.text = in.text();
  }
  for (auto left = in.u32(); left > 0; --left) {
    const auto seq = in.u64();
    calls.marks.push_back({seq, in.u64()});
  }
  in.end();
  return calls;
}

std::optional<CallDifference> difference(const GroupNames& names, const PastCalls& mine,
                                         const PastCalls& theirs) {
  const auto words = [&](const PastCall& call, const PastCalls& of) {
    if (!call.text.empty()) return fmt::format("{} #{}", call.text, names.shown(call.seq));
    auto text = fmt::format("{} #{}", name_of(call.operation), names.shown(call.seq));
    if (is_reduction(call.operation)) text += fmt::format(" {}", name_of(call.reduce));
    if (call.operation != Operation::barrier)
      text += fmt::format(" {} {} B", name_of(call.dtype), call.bytes);
    if (call.root >= 0) text += fmt::format(" root {}", names(call.root));
    if (call.ops > 1) text += fmt::format(" (first of {})", call.ops);
    return text + (&call == &of.calls.back() ? " running" : " done");
  };
  const auto found = [&](Operation operation, std::uint64_t seq, const std::string& own,
                         const std::string& other) {
    const bool first = mine.rank < theirs.rank;
    return CallDifference{
        operation, seq,
        fmt::format("ranks made different calls: rank {}: {}; rank {}: {}; every rank has to make "
                    "the same calls in the same order",
                    names(first ? mine.rank : theirs.rank), first ? own : other,
                    names(first ? theirs.rank : mine.rank), first ? other : own),
        seq == mine.last() && seq == theirs.last()};
  };
  if (mine.empty() || theirs.empty()) return std::nullopt;
  const auto none = [&](std::uint64_t seq) {
    return fmt::format("no call #{}, which it refused or which failed", names.shown(seq));
  };
  const PastCall* only_mine = nullptr;
  const PastCall* only_theirs = nullptr;
  const auto first = mine.calls.size() < CallHistory::length ? 0 : mine.calls.front().seq;
  for (const auto& call : theirs.calls)
    if (call.seq >= first && call.seq < mine.last() &&
        !std::ranges::binary_search(mine.calls, call.seq, {}, &PastCall::seq))
      only_theirs = &call;
  for (const auto& own : mine.calls) {
    const auto seq = own.seq;
    const auto other = std::ranges::lower_bound(theirs.calls, seq, {}, &PastCall::seq);
    if (other == theirs.calls.end() || other->seq != seq) {
      if (seq < theirs.last() &&
          (theirs.calls.size() < CallHistory::length || seq > theirs.calls.front().seq))
        only_mine = &own;
      continue;
    }
    if (own.fingerprint != other->fingerprint)
      return found(own.operation, seq, words(own, mine), words(*other, theirs));
    if (own.before == other->before) continue;
    if (only_mine != nullptr)
      return found(only_mine->operation, only_mine->seq, words(*only_mine, mine),
                   none(only_mine->seq));
    if (only_theirs != nullptr)
      return found(only_theirs->operation, only_theirs->seq, none(only_theirs->seq),
                   words(*only_theirs, theirs));
    const auto before = fmt::format("another call before {}", words(own, mine));
    return found(own.operation, seq, before, before);
  }
  for (const auto& own : mine.marks)
    for (const auto& other : theirs.marks)
      if (own[0] == other[0] && own[1] != other[1]) {
        const auto before = fmt::format("another call before #{}", names.shown(own[0]));
        return found(mine.calls.back().operation, own[0], before, before);
      }
  return std::nullopt;
}

}  // namespace tutti::internal
