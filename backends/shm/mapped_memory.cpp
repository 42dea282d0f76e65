#include "mapped_memory.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "layout.hpp"
#include "values/fail.hpp"

namespace tutti::backend::shm {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t least_segment = 2 * MiB;  // Of a huge page.
/// A segment is as large as all before it together, up to this size.
constexpr std::size_t most_growth = 64 * MiB;
constexpr std::size_t label_bytes = whole_lines(sizeof(SegmentLabel));

std::size_t rounded(std::size_t bytes) {
  return whole_lines(std::max<std::size_t>(bytes, 1));
}

}  // namespace

std::shared_ptr<MappedMemory> MappedMemory::of_process() {
  // Never destroyed: groups may outlive static objects.
  static std::mutex& mutex = *new std::mutex;
  static std::weak_ptr<MappedMemory>& known = *new std::weak_ptr<MappedMemory>;
  const std::lock_guard lock(mutex);
  auto memory = known.lock();
  if (!memory || memory->fork_guard_.forked()) known = memory = std::make_shared<MappedMemory>();
  return memory;
}

void* MappedMemory::allocate(std::size_t bytes, Stream) {
  if (fork_guard_.forked())
    throw Error(Errc::forked, "the group's memory was made before fork(); make a new group");
  constexpr auto most = std::size_t{1} << 62;
  if (bytes > most)
    internal::failf(Errc::resource_exhausted, "shm: cannot allocate {} bytes of shared memory",
                    bytes);
  const auto size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  // The smallest range that suffices.
  Part* chosen = nullptr;
  std::vector<Range>::iterator best;
  for (auto& part : parts_)
    for (auto range = part.free.begin(); range != part.free.end(); ++range) {
      const auto room = range->end - range->begin;
      if (room < size || (chosen != nullptr && best->end - best->begin <= room)) continue;
      chosen = &part;
      best = range;
    }
  if (chosen == nullptr) {
    chosen = &grow(size);
    best = chosen->free.begin();
  }
  if (chosen->free.capacity() < chosen->blocks + 2) {
    const auto index = best - chosen->free.begin();
    chosen->free.reserve(2 * chosen->blocks + 2);
    best = chosen->free.begin() + index;
  }
  ++chosen->blocks;
  auto* const data = chosen->memory->data() + best->begin;
  best->begin += size;
  if (best->begin == best->end) chosen->free.erase(best);
  return data;
}

MappedMemory::Part& MappedMemory::grow(std::size_t bytes) {
  static std::atomic<std::uint32_t> last{Location::nowhere};  // Relaxed: only the number counts.
  const auto needed = (bytes + label_bytes + least_segment - 1) / least_segment * least_segment;
  const auto size = std::max(needed, std::min(bytes_, most_growth));
  Part part;
  part.file = make_file(size);
  part.memory = Segment::map(part.file, size);
  part.number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  new (part.memory->data()) SegmentLabel{.segment = part.number};
  part.free.push_back({label_bytes, size});
  parts_.push_back(std::move(part));
  bytes_ += size;
  return parts_.back();
}

void MappedMemory::release(void* data, std::size_t bytes, Stream) noexcept {
  if (fork_guard_.forked()) return;
  const std::lock_guard lock(mutex_);
  Part* const part = part_of(data);
  if (part == nullptr) return;
  const auto begin = static_cast<std::size_t>(static_cast<std::byte*>(data) - part->memory->data());
  Range range{begin, begin + rounded(bytes)};
  --part->blocks;
  if (part->quarantined) return;
  auto& free = part->free;
  auto after = std::ranges::lower_bound(free, range.begin, {}, &Range::begin);
  if (after != free.end() && after->begin == range.end) {
    range.end = after->end;
    after = free.erase(after);
  }
  if (after != free.begin() && std::prev(after)->end == range.begin)
    std::prev(after)->end = range.end;
  else
    free.insert(after, range);
}

void MappedMemory::copy(void* to, const void* from, std::size_t bytes, Stream) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

MappedMemory::Part* MappedMemory::part_of(const void* data) noexcept {
  return const_cast<Part*>(std::as_const(*this).part_of(data));
}

const MappedMemory::Part* MappedMemory::part_of(const void* data) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (const auto& part : parts_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(part.memory->data());
    if (address >= begin && address - begin < part.memory->bytes()) return &part;
  }
  return nullptr;
}

Location MappedMemory::find(const void* data, std::size_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  const Part* const part = part_of(data);
  if (part == nullptr) return {};
  const auto offset =
      static_cast<std::size_t>(static_cast<const std::byte*>(data) - part->memory->data());
  if (bytes > part->memory->bytes() - offset) return {};
  return {.segment = part->number, .file = part->file.get(), .offset = offset};
}

void MappedMemory::quarantine(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  if (Part* const part = part_of(data); part != nullptr) {
    part->quarantined = true;
    part->free.clear();
  }
}

}  // namespace tutti::backend::shm
