#include "host.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "memory/segment.hpp"

namespace tutti::backend::shm {

Errc code_of_errno(int number) noexcept {
  switch (number) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
      return Errc::resource_exhausted;
    default:
      return Errc::backend;
  }
}

std::string lack_of_memory() {
  return lack_of_files(std::size_t{32} << 20);
}

Descriptor process_descriptor(int process) noexcept {
  // glibc 2.36 has pidfd_open(); the number is the same on every processor.
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
#else
  return Descriptor(static_cast<int>(::syscall(434, process, 0)));
#endif
}

}  // namespace tutti::backend::shm
