#include "peer_memory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

namespace tutti::backend::shm {
namespace {

/// Opens a descriptor of another process, or of this one. The kernel permits it to processes of one
/// user that it would let read each other's memory.
Descriptor open_of_process(int process, std::int32_t file) {
  const auto path = fmt::format("/proc/{}/fd/{}", process, file);
  // Not blocking: a peer gone mad may name a pipe.
  return Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
}

bool has_ended(const Descriptor& process) {
  pollfd event{process.get(), POLLIN, 0};
  return process.is_open() && ::poll(&event, 1, 0) != 0;
}

std::shared_ptr<Segment> map_segment(int id, const Descriptor& process, const Location& location) {
  const auto file = open_of_process(id, location.file);
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  // The number is still that of the peer, so the file was the peer's.
  if (has_ended(process)) return {};
  // Before it is mapped, which would allocate the pages of a file that is not a segment.
  SegmentLabel label{};
  if (::pread(file.get(), &label, sizeof label, 0) != ssize_t{sizeof label}) return {};
  if (label.magic != SegmentLabel::word || label.segment != location.segment) return {};
  try {
    return Segment::map(file, static_cast<std::size_t>(status.st_size));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

const PeerMemory::Known* PeerMemory::find(int rank, const Location& location) const noexcept {
  // The newest first: a rank uses few segments.
  const auto& segments = segments_[static_cast<std::size_t>(rank)];
  const auto known = std::find_if(segments.rbegin(), segments.rend(), [&](const Known& segment) {
    return segment.number == location.segment;
  });
  return known == segments.rend() ? nullptr : &*known;
}

PeerMemory::State PeerMemory::state(int rank, const Location& location) const noexcept {
  const auto* known = find(rank, location);
  if (known == nullptr || !known->settled) return State::unknown;
  return known->memory ? State::mapped : State::refused;
}

bool PeerMemory::map(int rank, const Location& location) {
  if (const auto* known = find(rank, location)) return known->memory != nullptr;
  const auto r = static_cast<std::size_t>(rank);
  const bool mine = !made_.processes[r].is_open();
  auto memory = map_segment(mine ? ::getpid() : made_.ids[r], made_.processes[r], location);
  segments_[r].push_back({location.segment, memory, false});
  return memory != nullptr;
}

void PeerMemory::settle(bool all_mapped) noexcept {
  for (auto& segments : segments_)
    for (auto& known : segments) {
      if (known.settled) continue;
      known.settled = true;
      if (!all_mapped) known.memory.reset();
    }
}

std::byte* PeerMemory::data(int rank, const Location& location, std::size_t bytes) const noexcept {
  const auto* known = find(rank, location);
  if (known == nullptr || !known->memory) return nullptr;
  const auto size = known->memory->bytes();
  if (location.offset > size || bytes > size - location.offset) return nullptr;
  return known->memory->data() + location.offset;
}

}  // namespace tutti::backend::shm
