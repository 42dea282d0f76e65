#include "segment.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "per_process.hpp"
#include "values/fail.hpp"

#ifndef MADV_POPULATE_WRITE  // Of glibc 2.35.
#define MADV_POPULATE_WRITE 23
#endif

namespace tutti::backend::memory {
namespace {

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

/// Allocates pages, so that a lack of memory is an error here and never SIGBUS later. Returns an
/// errno.
int allocate(int file, std::size_t begin, std::size_t bytes) {
  // Without signals: one would undo the allocation, and a regular one would do so for ever.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = ::posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

[[noreturn]] void fail_allocation(std::size_t bytes, std::string_view place, std::string_view why) {
  internal::failf(Errc::resource_exhausted, "shm: cannot allocate {} bytes of shared memory {}: {}",
                  bytes, place, why);
}

/// Allocates while memory is available. The kernel has no limit of its own for a memfd, and kills
/// processes when it finds no memory. Looks before each chunk, because other processes may allocate
/// at the same time; a chunk is so small that 256 of them cannot take all memory in between.
void allocate_available(const Descriptor& file, std::size_t begin, std::size_t bytes,
                        std::string_view place, const MemoryFigures& available) {
  if (!available) {
    if (const int error = allocate(file.get(), begin, bytes); error != 0)
      fail_allocation(bytes, place, std::strerror(error));
    return;
  }
  for (std::size_t done = 0; done < bytes;) {
    const auto left = available();
    const auto usable = left.bytes - left.bytes / 16;
    if (bytes - done > usable)
      fail_allocation(bytes, place,
                      fmt::format("{} bytes are available, 15/16 of what is left of {}",
                                  done + usable, left.limit));
    const auto chunk = std::min<std::uint64_t>(
        bytes - done, std::clamp<std::uint64_t>(left.bytes / 256, 2 * mebi, 64 * mebi));
    if (const int error = allocate(file.get(), begin + done, chunk); error != 0)
      fail_allocation(bytes, place, std::strerror(error));
    done += chunk;
  }
}

/// The mappings of this process that another thread may share.
class Mappings {
 public:
  /// With a new mapping if there is none; true then.
  template <typename Make>
  std::pair<std::shared_ptr<Segment>, bool> find_or_make(const struct stat& file,
                                                         const Make& make) {
    const std::lock_guard lock(mutex_);
    std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
    auto& known = mappings_[{file.st_dev, file.st_ino}];
    if (auto segment = known.lock()) return {segment, false};
    auto segment = make();
    known = segment;
    return {segment, true};
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Segment>> mappings_;
};

Descriptor make_memfd() noexcept {
  return Descriptor(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

/// The result of `use` for the first directory of unnamed files for which it throws no error.
/// @throws Error resource_exhausted with the errors for all, after `memfd`.
template <typename Use>
auto in_first_directory(std::size_t bytes, std::string_view memfd, const Use& use) {
  std::string tried;
  const char* named = std::getenv("TMPDIR");
  for (const std::string& directory :
       {std::string("/dev/shm"), std::string(named == nullptr ? "" : named), std::string("/tmp")}) {
    if (directory.empty()) continue;
    try {
      return use(directory);
    } catch (const Error& error) {
      tried += "; " + error.message();
    }
  }
  internal::failf(Errc::resource_exhausted,
                  "shm: {} bytes of shared memory are needed; memfd: {}{}", bytes, memfd, tried);
}

struct UnnamedFile {
  Descriptor file;
  bool is_in_memory;
};

/// A file in a directory that has room for so many bytes, none of which are allocated.
UnnamedFile open_in(const std::string& directory, std::size_t bytes, bool only_memory) {
  Descriptor file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
  struct statfs system {};
  if (!file.is_open() || ::fstatfs(file.get(), &system) != 0)
    internal::failf(Errc::resource_exhausted,
                    "shm: cannot create an unnamed file of {} bytes in {}: {}", bytes, directory,
                    std::strerror(errno));
  const bool in_memory = system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
  if (only_memory && !in_memory)
    fail_allocation(bytes, "in " + directory, "the file system is not in memory");
  // A tmpfs without a limit has no blocks.
  const auto space = system.f_blocks == 0
                         ? std::numeric_limits<std::uint64_t>::max()
                         : system.f_bavail * static_cast<std::uint64_t>(system.f_bsize);
  if (bytes > space)
    fail_allocation(bytes, "in " + directory,
                    fmt::format("the file system has {} bytes left", space));
  return {std::move(file), in_memory};
}

}  // namespace

Descriptor make_file(std::size_t bytes, const FileOptions& options) {
  auto file = make_memfd();
  if (file.is_open()) {
    allocate_available(file, 0, bytes, "(memfd)", options.available);
    if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      internal::failf(Errc::backend, "shm: cannot seal the shared memory: {}",
                      std::strerror(errno));
    return file;
  }
  return in_first_directory(bytes, std::strerror(errno), [&](const std::string& directory) {
    return make_file_in(directory, bytes, options);
  });
}

Descriptor make_file_in(const std::string& directory, std::size_t bytes,
                        const FileOptions& options) {
  auto made = open_in(directory, bytes, options.only_memory);
  const auto place = "in " + directory;
  if (made.is_in_memory)
    allocate_available(made.file, 0, bytes, place, options.available);
  else if (const int error = allocate(made.file.get(), 0, bytes); error != 0)
    fail_allocation(bytes, place, std::strerror(error));
  return std::move(made.file);
}

std::string lack_of_files(std::size_t bytes) {
  if (make_memfd().is_open()) return {};
  const int forbidden = errno;
  if (forbidden == EMFILE || forbidden == ENFILE) return {};  // The rendezvous reports it.
  try {
    (void)in_first_directory(bytes, std::strerror(forbidden), [&](const std::string& directory) {
      return open_in(directory, bytes, true);
    });
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

void allocate_part(const Descriptor& file, std::size_t begin, std::size_t bytes,
                   const MemoryFigures& available) {
  allocate_available(file, begin, bytes, "again", available);
}

bool Segment::return_pages(std::size_t begin, std::size_t bytes) noexcept {
  // Not fallocate(), which libraries that register memory for a network place do not see: the place
  // would go on using the pages.
  return ::madvise(data_ + begin, bytes, MADV_REMOVE) == 0;
}

std::shared_ptr<Segment> Segment::map(const Descriptor& file, std::size_t bytes, Use use) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    internal::failf(Errc::backend, "shm: cannot read the size of the shared memory: {}",
                    std::strerror(errno));
  if (static_cast<std::uint64_t>(status.st_size) != bytes)
    internal::failf(Errc::backend, "shm: the shared memory has {} bytes; expected {}",
                    status.st_size, bytes);
  // F_SEAL_SEAL alone: an unnamed file of tmpfs, which cannot be sealed.
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals >= 0 && seals != F_SEAL_SEAL && (seals & F_SEAL_SHRINK) == 0)
    internal::failf(Errc::backend, "shm: the shared memory is not sealed against shrinking");
  const auto [segment, is_new] = of_this_process<Mappings>().find_or_make(status, [&] {
    const std::shared_ptr<Segment> made(new Segment(bytes, use));
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED)
      internal::failf(Errc::resource_exhausted, "shm: cannot map {} bytes of shared memory: {}",
                      bytes, std::strerror(errno));
    made->data_ = static_cast<std::byte*>(data);
    if (use == Use::arrays && ::madvise(data, bytes, MADV_DONTFORK) != 0)
      internal::failf(Errc::backend, "shm: cannot keep shared memory from forked children: {}",
                      std::strerror(errno));
    return made;
  });
  // Without the lock of the mappings, because it takes long.
  if (is_new && use == Use::group) segment->populate(0, bytes);
  return segment;
}

void Segment::populate(std::size_t begin, std::size_t bytes) const noexcept {
  // The kernel wants whole pages.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = begin / page * page;
  if (::madvise(data_ + first, begin + bytes - first, MADV_POPULATE_WRITE) == 0) return;
  // Before Linux 5.14.
  for (auto at = first; at < begin + bytes; at += page)
    (void)*static_cast<const volatile std::byte*>(data_ + at);
}

Segment::~Segment() {
  if (data_ == nullptr || (use_ == Use::arrays && fork_guard_.forked())) return;
  ::munmap(data_, bytes_);
}

}  // namespace tutti::backend::memory
