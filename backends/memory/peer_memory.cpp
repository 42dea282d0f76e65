#include "peer_memory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace tutti::backend::memory {
namespace {

/// Opens a descriptor of another process, or of this one. The kernel permits it to processes of one
/// user that it would let read each other's memory.
Descriptor open_of_process(int id, const Descriptor& process, std::int32_t file) {
  // pidfd_getfd(); the number is the same on every processor.
  if (id < 0) return Descriptor(static_cast<int>(::syscall(438, process.get(), file, 0)));
  const auto path = process.is_open() ? fmt::format("/proc/{}/fd/{}", id, file)
                                      : fmt::format("/proc/self/fd/{}", file);
  // Not blocking: a peer gone mad may name a pipe.
  return Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
}

bool has_ended(const Descriptor& process) {
  pollfd event{process.get(), POLLIN, 0};
  return process.is_open() && ::poll(&event, 1, 0) != 0;
}

/// @throws Error with the reason.
std::shared_ptr<Segment> map_segment(int id, const Descriptor& process, const Location& location) {
  const auto file = open_of_process(id, process, location.file);
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0)
    throw Error(Errc::backend, fmt::format("cannot open descriptor {} of process {}: {}",
                                           location.file, std::abs(id), std::strerror(errno)));
  // The number is still that of the peer, so the file was the peer's.
  if (has_ended(process))
    throw Error(Errc::backend, fmt::format("process {} has ended", std::abs(id)));
  // A copy, which is checked before the segment is mapped.
  SegmentLabel label{};
  const bool is_segment = S_ISREG(status.st_mode) &&
                          ::pread(file.get(), &label, sizeof label, 0) == ssize_t{sizeof label} &&
                          label.magic == SegmentLabel::word;
  if (!is_segment || label.process != static_cast<std::uint64_t>(std::abs(id)) ||
      label.segment != location.segment)
    throw Error(Errc::backend,
                fmt::format("descriptor {} of process {} no longer refers to segment {}",
                            location.file, std::abs(id), location.segment));
  return Segment::map(file, static_cast<std::size_t>(status.st_size), Segment::Use::arrays);
}

/// The memory is mapped.
bool is_retired(const Segment& segment) noexcept {
  auto& label = *reinterpret_cast<SegmentLabel*>(segment.data());
  // Relaxed: read once, and only a reason to unmap.
  return std::atomic_ref(label.segment).load(std::memory_order_relaxed) == SegmentLabel::retired;
}

/// The last number of calls after which a refused segment is tried again is 2 to this power.
constexpr int most_doublings = 10;

}  // namespace

const PeerMemory::Known* PeerMemory::find(int rank, const Location& location) const noexcept {
  // The newest first: a rank uses few segments.
  const auto& segments = segments_[static_cast<std::size_t>(rank)];
  const auto known = std::find_if(segments.rbegin(), segments.rend(), [&](const Known& segment) {
    return segment.number == location.segment;
  });
  return known == segments.rend() ? nullptr : &*known;
}

PeerMemory::Known* PeerMemory::find(int rank, const Location& location) noexcept {
  return const_cast<Known*>(std::as_const(*this).find(rank, location));
}

PeerMemory::State PeerMemory::state(int rank, const Location& location) const noexcept {
  const auto* known = find(rank, location);
  if (known == nullptr || !known->settled) return State::unknown;
  if (known->memory) return State::mapped;
  return calls_ < known->again ? State::refused : State::unknown;
}

bool PeerMemory::map(int rank, const Location& location) {
  auto* known = find(rank, location);
  const auto r = static_cast<std::size_t>(rank);
  if (known == nullptr) {
    forget_retired(rank);
    known = &segments_[r].emplace_back(Known{.number = location.segment});
  }
  known->settled = false;
  try {
    const bool mine = !made_.processes[r].is_open();
    if (!known->memory)  // Otherwise another array of the call is in it.
      known->memory = map_segment(mine ? ::getpid() : made_.ids[r], made_.processes[r], location);
  } catch (const Error& error) {
    warn(rank, error.message());
    return false;
  }
  // Not populated: that would allocate parts of the segment that its owner has given back.
  return true;
}

/// A retired segment has no memory, but its mapping takes room in the page table.
void PeerMemory::forget_retired(int rank) noexcept {
  std::erase_if(segments_[static_cast<std::size_t>(rank)], [](const Known& known) {
    return known.memory && known.settled && is_retired(*known.memory);
  });
}

void PeerMemory::warn(int rank, const std::string& why) noexcept {
  if (std::exchange(warned_, true)) return;
  try {
    logger_(LogLevel::warning,
            fmt::format("group '{}': cannot map the memory of rank {}: {}; calls with such arrays "
                        "copy them, which is slower, until a later attempt succeeds",
                        group_, rank, why));
  } catch (...) {  // No memory for the text.
  }
}

void PeerMemory::settle(int rank, const Location& location, bool all_mapped) noexcept {
  auto* const known = find(rank, location);
  if (known == nullptr || known->settled) return;
  known->settled = true;
  if (all_mapped) return;
  known->memory.reset();
  known->again = calls_ + (std::uint64_t{1} << std::min(known->failures++, most_doublings));
}

std::byte* PeerMemory::data(int rank, const Location& location, std::size_t bytes) const noexcept {
  const auto* known = find(rank, location);
  if (known == nullptr || !known->memory) return nullptr;
  const auto size = known->memory->bytes();
  if (location.offset > size || bytes > size - location.offset) return nullptr;
  return known->memory->data() + location.offset;
}

}  // namespace tutti::backend::memory
