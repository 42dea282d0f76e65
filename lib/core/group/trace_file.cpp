#include <tutti/trace_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "group/trace_layout.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

// Nanoseconds of a century. Later moments are refused, so that sums of two do not overflow.
constexpr std::int64_t latest_moment = std::int64_t{100} * 366 * 24 * 3600 * 1'000'000'000;

[[noreturn]] void damaged_trace(std::string_view what, std::int64_t value) {
  failf(Errc::invalid_argument, "the trace file is damaged: {} is {}", what, value);
}

/// The field at `offset`.
template <typename T>
T number_field(std::span<const std::byte> file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

std::string text_field(std::span<const std::byte> file, std::size_t offset, std::size_t length) {
  const auto* begin = reinterpret_cast<const char*>(file.data() + offset);
  std::string out(begin, ::strnlen(begin, length));
  // A terminal would obey control characters.
  std::ranges::replace_if(
      out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

Trace ring_entries(std::span<const std::byte> ring, bool messages) {
  // Too large for the stack of some threads.
  const auto copy = std::make_unique<TraceRing>();
  if (!copy->load(ring)) damaged_trace("an entry's number", -1);
  Trace out;
  copy->read(out);
  for (auto& e : out) {
    const auto kind = static_cast<int>(e.operation);
    if (kind >= operation_count || is_point_to_point(e.operation) != messages)
      damaged_trace("an operation", kind);
    const auto started = e.started.time_since_epoch().count();
    if (started < 0 || started > latest_moment) damaged_trace("the start of a call", started);
    std::ranges::replace_if(
        e.name, [](char c) { return c < ' ' || c > '~'; }, '?');
  }
  return out;
}

}  // namespace
}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

TraceFile read_trace(std::span<const std::byte> file) {
  using internal::damaged_trace;
  using internal::number_field;
  using Layout = internal::TraceLayout;
  if (file.size() != sizeof(Layout))
    internal::failf(Errc::invalid_argument,
                    "not a trace file: it has {} bytes, a trace file has {}", file.size(),
                    sizeof(Layout));
  if (const auto magic = number_field<std::uint64_t>(file, offsetof(Layout, magic));
      magic != Layout::known_magic)
    internal::failf(Errc::invalid_argument,
                    "not a complete trace file of this version: it begins with {:#x}, not {:#x}",
                    magic, Layout::known_magic);
  TraceFile out;
  out.made = number_field<std::uint64_t>(file, offsetof(Layout, made));
  out.rank = number_field<std::int32_t>(file, offsetof(Layout, rank));
  out.size = number_field<std::int32_t>(file, offsetof(Layout, size));
  out.pid = number_field<std::int64_t>(file, offsetof(Layout, pid));
  if (out.size < 1) damaged_trace("the size", out.size);
  if (out.rank < 0 || out.rank >= out.size) damaged_trace("the rank", out.rank);
  if (out.pid < 1 || out.pid > std::numeric_limits<std::int32_t>::max())
    damaged_trace("pid", out.pid);
  const auto opened = number_field<std::int64_t>(file, offsetof(Layout, opened));
  const auto offset = number_field<std::int64_t>(file, offsetof(Layout, wall_offset));
  if (opened < 0 || opened > internal::latest_moment) damaged_trace("its time", opened);
  if (offset < -internal::latest_moment || offset > internal::latest_moment)
    damaged_trace("its clock", offset);
  // Microseconds in libc++.
  out.opened = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(opened)));
  out.wall_offset = std::chrono::nanoseconds(offset);
  out.closed = number_field<std::uint64_t>(file, offsetof(Layout, closed)) != 0;
  out.host = internal::text_field(file, offsetof(Layout, host), sizeof(Layout::host));
  out.group = internal::text_field(file, offsetof(Layout, group), sizeof(Layout::group));
  const auto rings = file.subspan(offsetof(Layout, rings));
  out.collectives = internal::ring_entries(rings.first(sizeof(internal::TraceRing)), false);
  out.messages = internal::ring_entries(rings.last(sizeof(internal::TraceRing)), true);
  return out;
}

}  // namespace tutti
