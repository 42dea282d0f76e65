#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "values/fail.hpp"

namespace tutti::backend::shm {
namespace {

/// Allocates all pages, so that a lack of memory is an error here and never SIGBUS later.
/// Returns an errno.
int allocate(int file, std::size_t bytes) {
  // In one call, which a file system without room refuses before it takes any. Without signals: one
  // would undo the allocation, and a regular one would do so for ever.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

Descriptor allocated(Descriptor file, std::size_t bytes, std::string_view place) {
  if (const int error = allocate(file.get(), bytes); error != 0)
    internal::failf(Errc::resource_exhausted,
                    "shm: cannot allocate {} bytes of shared memory {}: {}", bytes, place,
                    std::strerror(error));
  return file;
}

/// The mappings of this process that another thread may share.
class Mappings {
 public:
  static Mappings& of_process() {
    // Never destroyed: groups may outlive static objects.
    static Mappings& mappings = *new Mappings;
    return mappings;
  }
  template <typename Make>
  std::shared_ptr<Segment> find_or_make(const struct stat& file, const Make& make) {
    const std::lock_guard lock(mutex_);
    std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
    auto& known = mappings_[{file.st_dev, file.st_ino}];
    if (auto segment = known.lock()) return segment;
    auto segment = make();
    known = segment;
    return segment;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Segment>> mappings_;
};

}  // namespace

Descriptor make_file(std::size_t bytes) {
  Descriptor file(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.is_open()) {
    file = allocated(std::move(file), bytes, "(memfd)");
    if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      internal::failf(Errc::backend, "shm: cannot seal the shared memory: {}",
                      std::strerror(errno));
    return file;
  }
  const int forbidden = errno;
  std::string tried;
  const char* named = std::getenv("TMPDIR");
  for (const std::string& directory :
       {std::string("/dev/shm"), std::string(named == nullptr ? "" : named), std::string("/tmp")}) {
    if (directory.empty()) continue;
    try {
      return make_file_in(directory, bytes);
    } catch (const Error& error) {
      tried += "; " + error.message();
    }
  }
  internal::failf(Errc::resource_exhausted,
                  "shm: {} bytes of shared memory are needed; memfd: {}{}", bytes,
                  std::strerror(forbidden), tried);
}

Descriptor make_file_in(const std::string& directory, std::size_t bytes) {
  Descriptor file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
  if (!file.is_open())
    internal::failf(Errc::resource_exhausted,
                    "shm: cannot create an unnamed file of {} bytes in {}: {}", bytes, directory,
                    std::strerror(errno));
  return allocated(std::move(file), bytes, "in " + directory);
}

std::shared_ptr<Segment> Segment::map(const Descriptor& file, std::size_t bytes) {
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
  return Mappings::of_process().find_or_make(status, [&] {
    // Populated: the pages are there, and a later page fault would cost more.
    void* data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (data == MAP_FAILED)
      internal::failf(Errc::resource_exhausted, "shm: cannot map {} bytes of shared memory: {}",
                      bytes, std::strerror(errno));
    return std::shared_ptr<Segment>(new Segment(static_cast<std::byte*>(data), bytes));
  });
}

Segment::~Segment() {
  ::munmap(data_, bytes_);
}

}  // namespace tutti::backend::shm
