#include "values/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace tutti::internal {

std::atomic<std::uint64_t>& ForkGuard::page() {
  // One page per process, never unmapped. Once the process has made a guard, the page holds its id;
  // a forked child finds 0.
  static std::atomic<std::uint64_t>& shared = []() -> std::atomic<std::uint64_t>& {
    const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data != MAP_FAILED && ::madvise(data, size, MADV_WIPEONFORK) == 0)
      return *new (data) std::atomic<std::uint64_t>(0);
    static std::atomic<std::uint64_t> fallback{0};  // Forks are not detected then.
    return fallback;
  }();
  return shared;
}

ForkGuard::ForkGuard() : page_(&page()), mine_(static_cast<std::uint64_t>(::getpid())) {
  page_->store(mine_, std::memory_order_relaxed);  // After a fork the child finds 0.
}

}  // namespace tutti::internal
