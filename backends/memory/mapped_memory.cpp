#include "mapped_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "layout.hpp"
#include "per_process.hpp"
#include "values/fail.hpp"

namespace tutti::backend::memory {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t least_segment = 2 * MiB;  // Of a huge page.
/// A segment is as large as all before it together, up to this size.
constexpr std::size_t most_growth = 64 * MiB;
/// Smaller free ranges stay allocated.
constexpr std::size_t least_returned = MiB;
/// Of releases, after which the peak of the memory in use is forgotten.
constexpr std::uint64_t period = 1000;
constexpr std::size_t label_bytes = whole_lines(sizeof(SegmentLabel));

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::size_t page_below(std::size_t offset) {
  return offset / page_bytes() * page_bytes();
}

std::size_t page_above(std::size_t offset) {
  return page_below(offset + page_bytes() - 1);
}

std::size_t rounded(std::size_t bytes) {
  return whole_lines(std::max<std::size_t>(bytes, 1));
}

struct Registry {
  std::mutex mutex;
  std::weak_ptr<MappedMemory> memory;
};

}  // namespace

std::shared_ptr<MappedMemory> MappedMemory::of_process() {
  auto& registry = of_this_process<Registry>();
  const std::lock_guard lock(registry.mutex);
  auto memory = registry.memory.lock();
  if (!memory) registry.memory = memory = std::make_shared<MappedMemory>();
  return memory;
}

MappedMemory::~MappedMemory() {
  if (fork_guard_.forked()) return;
  // A child that was forked before may hold the files, and a peer the mappings.
  for (const auto& part : parts_) retire(part);
}

// --- Allocating ---

void* MappedMemory::allocate(std::size_t bytes, Stream) {
  if (fork_guard_.forked())
    throw Error(Errc::forked, "the group's memory was made before fork(); make a new group");
  constexpr auto most = std::size_t{1} << 62;
  if (bytes > most)
    internal::failf(Errc::resource_exhausted, "shm: cannot allocate {} bytes of shared memory",
                    bytes);
  const auto size = rounded(bytes);
  {
    const std::lock_guard lock(mutex_);
    if (const auto block = take_allocated(size)) return block.data();
  }
  Block block;
  try {
    block = find_block(size);
  } catch (const Error& error) {
    if (error.code() != Errc::resource_exhausted) throw;
    // One thread at a time: another one may be giving back what this one needs.
    const std::lock_guard returning(returning_);
    (void)return_free(0);
    block = find_block(size);
  }
  std::size_t keep = 0;
  {
    const std::lock_guard lock(mutex_);
    keep = kept();
  }
  (void)return_free(keep);
  return block.data();
}

/// A block of memory that the system has to give.
MappedMemory::Block MappedMemory::find_block(std::size_t bytes) {
  std::vector<Range> holes;
  std::size_t growth = 0;
  Block block;
  {
    const std::lock_guard lock(mutex_);
    block = take_with_holes(bytes, holes);
    growth = std::min(allocated_, most_growth);
  }
  if (block) {
    fill(block, holes);
    // The rest of the last page, which no other block could have before.
    const std::lock_guard lock(mutex_);
    const Range rest{block.range.begin + bytes, block.range.end};
    block.range.end = rest.begin;
    in_use_ -= rest.bytes();
    if (rest.bytes() != 0) give(*block.part, rest);
    return block;
  }
  const auto needed = (bytes + label_bytes + least_segment - 1) / least_segment * least_segment;
  Parts made;
  try {
    made = make_part(std::max(needed, growth));
  } catch (const Error& error) {
    if (error.code() != Errc::resource_exhausted || needed >= growth) throw;
    made = make_part(needed);
  }
  const std::lock_guard lock(mutex_);
  parts_.splice(parts_.end(), made);
  has_parts_.store(true, std::memory_order_relaxed);
  count(parts_.back(), parts_.back().memory->bytes());
  block = {&parts_.back(), {label_bytes, label_bytes + bytes}};
  use(block);
  return block;
}

MappedMemory::Parts MappedMemory::make_part(std::size_t bytes) const {
  static std::atomic<std::uint32_t> last{Location::nowhere};  // Relaxed: only the number counts.
  Parts made(1);
  auto& part = made.front();
  part.file = make_file(bytes, {.only_memory = true, .available = available_});
  part.memory = Segment::map(part.file, bytes, Segment::Use::arrays);
  part.memory->populate(0, bytes);
  part.number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  new (part.memory->data())
      SegmentLabel{.process = static_cast<std::uint64_t>(::getpid()), .segment = part.number};
  part.free.reserve(2);
  part.free.push_back({label_bytes, bytes});
  return made;
}

/// Calls visit(part, range) for the free ranges that are allocated.
template <typename Visit>
void MappedMemory::for_each_free(const Visit& visit) {
  for (auto& part : parts_) {
    auto hole = part.holes.begin();
    for (const auto& range : part.free) {
      auto begin = range.begin;
      for (; hole != part.holes.end() && hole->begin < range.end; ++hole) {
        if (begin < hole->begin) visit(part, {begin, hole->begin});
        begin = std::max(begin, hole->end);
      }
      if (begin < range.end) visit(part, {begin, range.end});
    }
  }
}

/// The smallest range that suffices, and is allocated.
MappedMemory::Block MappedMemory::take_allocated(std::size_t bytes) {
  Block best;
  std::size_t least = 0;
  for_each_free([&](Part& part, Range range) {
    if (range.bytes() < bytes || (best && least <= range.bytes())) return;
    best = {&part, {range.begin, range.begin + bytes}};
    least = range.bytes();
  });
  if (best) use(best);
  return best;
}

/// The smallest free range that suffices. Its holes are then the caller's to fill. The block ends
/// with a page, so that none is shared with a block that needs it earlier.
MappedMemory::Block MappedMemory::take_with_holes(std::size_t bytes, std::vector<Range>& holes) {
  Block best;
  Range range{};
  for (auto& part : parts_)
    for (const auto& free : part.free)
      if (free.bytes() >= bytes && (!best || free.bytes() < range.bytes())) {
        best.part = &part;
        range = free;
      }
  if (!best) return best;
  best.range = {range.begin, std::min(range.end, page_above(range.begin + bytes))};
  auto& all = best.part->holes;
  holes.reserve(all.size());
  use(best);
  for (auto hole = all.begin(); hole != all.end() && hole->begin < best.range.end;) {
    if (hole->begin < best.range.begin) {
      ++hole;
      continue;
    }
    const auto end = std::min(hole->end, best.range.end);
    holes.push_back({hole->begin, end});
    if (end == hole->end)
      hole = all.erase(hole);
    else
      hole->begin = end;
  }
  return best;
}

/// Allocates the holes of a block, or releases the block. Without memory for the list of holes the
/// block stays taken.
void MappedMemory::fill(const Block& block, const std::vector<Range>& holes) {
  auto& part = *block.part;
  std::size_t filled = 0;
  try {
    for (const auto& hole : holes) {
      allocate_part(part.file, hole.begin, hole.bytes(), available_);
      part.memory->populate(hole.begin, hole.bytes());
      filled += hole.bytes();
    }
  } catch (...) {
    for (const auto& hole : holes) (void)part.memory->return_pages(hole.begin, hole.bytes());
    const std::lock_guard lock(mutex_);
    part.holes.reserve(part.holes.size() + holes.size());  // Then no add_hole() throws.
    for (const auto& hole : holes) add_hole(part, hole);
    in_use_ -= block.range.bytes();
    --part.blocks;
    give(part, block.range);
    throw;
  }
  const std::lock_guard lock(mutex_);
  count(part, filled);
}

/// Counts `bytes` more of a part, or less: `bytes` wraps. A quarantined part does not count:
/// its memory is not free before this memory ends.
void MappedMemory::count(Part& part, std::size_t bytes) noexcept {
  if (part.quarantined) return;
  part.allocated += bytes;
  allocated_ += bytes;
}

void MappedMemory::add_hole(Part& part, Range range) {
  part.holes.insert(std::ranges::lower_bound(part.holes, range.begin, {}, &Range::begin), range);
}

void MappedMemory::take(const Block& block) {
  auto& [part, range] = block;
  auto& free = part->free;
  // There is at most one free range more than blocks.
  if (free.capacity() < part->blocks + 2)
    free.reserve(2 * part->blocks + 2);  // Before the iterators.
  auto after = std::ranges::upper_bound(free, range.begin, {}, &Range::begin);
  const auto found = std::prev(after);
  const auto end = std::exchange(found->end, range.begin);
  if (found->bytes() == 0) after = free.erase(found);
  if (end != range.end) free.insert(after, {range.end, end});
  ++part->blocks;
}

void MappedMemory::use(const Block& block) {
  take(block);
  in_use_ += block.range.bytes();
  peak_ = std::max(peak_, in_use_);
}

// --- Releasing ---

void MappedMemory::release(void* data, std::size_t bytes, Stream) noexcept {
  if (fork_guard_.forked()) return;
  std::unique_lock lock(mutex_);
  Part* const part = part_of(data);
  if (part == nullptr) return;
  const auto begin = static_cast<std::size_t>(static_cast<std::byte*>(data) - part->memory->data());
  --part->blocks;
  in_use_ -= rounded(bytes);
  give(*part, {begin, begin + rounded(bytes)});
  if (++releases_ % period != 0) return;
  const auto keep = kept();
  last_peak_ = std::exchange(peak_, in_use_);
  lock.unlock();
  (void)return_free(keep);
}

void MappedMemory::give(Part& part, Range range) noexcept {
  if (part.quarantined) return;
  auto& free = part.free;
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

std::size_t MappedMemory::kept() const noexcept {
  return 2 * std::max(peak_, last_peak_) + most_growth;
}

/// The whole pages of the largest free range; at least `least_returned`, or none.
MappedMemory::Block MappedMemory::largest_free() {
  Block best;
  for_each_free([&](Part& part, Range range) {
    const Range pages{page_above(range.begin), page_below(range.end)};
    if (pages.begin + least_returned > pages.end) return;
    if (!best || pages.bytes() > best.range.bytes()) best = {&part, pages};
  });
  return best;
}

/// Gives free memory back to the system while more than `keep` bytes are allocated. False if none
/// was given back.
bool MappedMemory::return_free(std::size_t keep) noexcept try {
  for (bool any = false;; any = true) {
    Parts unused;
    Block block;
    {
      const std::lock_guard lock(mutex_);
      if (allocated_ <= keep) return any;
      // Whole segments first: they take a descriptor.
      const auto whole = std::ranges::find_if(
          parts_, [](const Part& part) { return part.blocks == 0 && !part.quarantined; });
      if (whole != parts_.end()) {
        unused.splice(unused.end(), parts_, whole);
        allocated_ -= whole->allocated;
      } else {
        block = largest_free();
        if (!block) return any;
        const auto excess = page_above(std::max(allocated_ - keep, least_returned));
        if (block.range.bytes() > excess) block.range.begin = block.range.end - excess;
        take(block);
      }
    }
    if (!block) {
      retire(unused.front());
      continue;
    }
    auto& [part, range] = block;
    const bool returned = part->memory->return_pages(range.begin, range.bytes());
    const std::lock_guard lock(mutex_);
    if (returned) {
      count(*part, std::size_t{0} - range.bytes());
      add_hole(*part, range);
    }
    --part->blocks;
    give(*part, range);
    if (!returned) return any;
  }
} catch (...) {  // No memory for a list. A block that is taken then stays so.
  return false;
}

/// Peers unmap the segment when they map the next one.
void MappedMemory::retire(const Part& part) noexcept {
  auto& label = *std::launder(reinterpret_cast<SegmentLabel*>(part.memory->data()));
  // Relaxed: the peers' calls with its arrays have ended, and no peer has to see it at once.
  std::atomic_ref(label.segment).store(SegmentLabel::retired, std::memory_order_relaxed);
  (void)part.memory->return_pages(page_bytes(), part.memory->bytes() - page_bytes());
}

// --- Locations ---

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
  // Relaxed: a thread that has an array of a part has seen it made.
  if (!has_parts_.load(std::memory_order_relaxed)) return {};
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
  if (Part* const part = part_of(data); part != nullptr && !part->quarantined) {
    allocated_ -= part->allocated;
    part->quarantined = true;
    part->free.clear();
  }
}

}  // namespace tutti::backend::memory
