#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "values/fail.hpp"

namespace tutti::backend::mesh {

/// A flag that is also a descriptor: poll() reports it as readable while it is set.
class Event {
 public:
  /// @throws Error resource_exhausted.
  Event() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0)
      internal::failf(Errc::resource_exhausted,
                      "cannot start the connection watcher (no file descriptor): {}",
                      std::strerror(errno));
  }
  ~Event() { ::close(descriptor_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  void set() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(descriptor_, &one, sizeof one);
  }
  /// True if it was set.
  bool clear() const noexcept {
    std::uint64_t count = 0;
    return ::read(descriptor_, &count, sizeof count) == sizeof count;
  }

 private:
  int descriptor_;
};

}  // namespace tutti::backend::mesh
