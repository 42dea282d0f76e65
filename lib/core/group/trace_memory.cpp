#include "group/trace_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/checks.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

template <typename Clock>
std::int64_t nanoseconds_now() {
  const auto now = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

[[noreturn]] void cannot_trace(const GroupOptions& o, const std::string& path, int error) {
  const bool full =
      error == ENOSPC || error == EDQUOT || error == ENOMEM || error == EMFILE || error == ENFILE;
  failf(full ? Errc::resource_exhausted : Errc::backend,
        "group '{}': TUTTI_TRACE_DIR: cannot make the trace file {}: {}; name a directory that "
        "exists and that rank {} can write, or unset the variable",
        o.name, path, std::generic_category().message(error), o.rank);
}

std::string file_name(const GroupOptions& o, std::int64_t opened) {
  std::string group = o.name.substr(0, 150);  // A file name has at most 255 bytes.
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  std::ranges::replace_if(
      group, [&](char c) { return !is_plain(c); }, '_');
  // A process may make a group of this name and rank again.
  return fmt::format("{}.{}.{}.{}.trace", group, o.rank, ::getpid(), opened);
}

/// A number that the ranks of this group have in common, and no other group of this name.
std::uint64_t common_number(const GroupOptions& o, Rendezvous* rendezvous, std::int64_t opened) {
  if (o.size == 1) return static_cast<std::uint64_t>(opened);
  if (rendezvous == nullptr) return 0;
  const auto text =
      to_text(rendezvous->publish_first("traces_made", to_bytes(std::to_string(opened))));
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

TraceLayout* map_file(const GroupOptions& o, const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) cannot_trace(o, path, errno);
  // Allocated now: a page that the device cannot store later would be a SIGBUS.
  int error = ::posix_fallocate(file, 0, sizeof(TraceLayout));
  void* block = MAP_FAILED;
  if (error == 0) {
    block = ::mmap(nullptr, sizeof(TraceLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block == MAP_FAILED) error = errno;
  }
  ::close(file);
  if (error == 0) return new (block) TraceLayout;
  ::unlink(path.c_str());
  cannot_trace(o, path, error);
}

void copy_text(std::string_view from, std::span<char> to) {
  from.copy(to.data(), to.size() - 1);
}

}  // namespace

void TraceDeleter::operator()(TraceRings* rings) const noexcept {
  if (file == nullptr) {
    delete rings;
    return;
  }
  file->closed.store(1, std::memory_order_release);
  ::munmap(file, sizeof(TraceLayout));
}

TraceMemory make_traces(const GroupOptions& o, Rendezvous* rendezvous) {
  const char* directory = std::getenv("TUTTI_TRACE_DIR");
  if (directory == nullptr || *directory == '\0') return TraceMemory(new TraceRings);
  const auto opened = nanoseconds_now<std::chrono::system_clock>();
  const auto made = common_number(o, rendezvous, opened);
  auto* layout = map_file(o, fmt::format("{}/{}", directory, file_name(o, opened)));
  TraceMemory rings(&layout->rings, {layout});
  layout->made = made;
  layout->rank = o.rank;
  layout->size = o.size;
  layout->pid = ::getpid();
  layout->opened = opened;
  layout->wall_offset =
      nanoseconds_now<std::chrono::system_clock>() - nanoseconds_now<std::chrono::steady_clock>();
  (void)::gethostname(layout->host.data(), layout->host.size() - 1);
  copy_text(o.name, layout->group);
  layout->magic.store(TraceLayout::known_magic, std::memory_order_release);
  return rings;
}

}  // namespace tutti::internal
