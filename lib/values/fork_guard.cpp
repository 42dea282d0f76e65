#include "values/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace tutti::internal {

std::atomic<std::uint64_t>& ForkGuard::page() {
  // One page per process, never unmapped. Once the process has made a guard, the page holds its id;
  // a forked child finds 0.
  static std::atomic<std::uint64_t>* shared = nullptr;
  [[maybe_unused]] static const bool made = [] {
    const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static std::atomic<std::uint64_t> otherwise{0};
    shared = data == MAP_FAILED ? &otherwise : new (data) std::atomic<std::uint64_t>(0);
    // The handler is for systems that cannot wipe the page, or say so without doing it.
    if (data != MAP_FAILED) (void)::madvise(data, size, MADV_WIPEONFORK);
    // Relaxed: the child has one thread.
    return ::pthread_atfork(nullptr, nullptr,
                            [] { shared->store(0, std::memory_order_relaxed); }) == 0;
  }();
  return *shared;
}

ForkGuard::ForkGuard() : page_(&page()), mine_(static_cast<std::uint64_t>(::getpid())) {
  page_->store(mine_, std::memory_order_relaxed);  // After a fork the child finds 0.
}

}  // namespace tutti::internal
