#include "values/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace tutti::internal {
namespace {

using Generations = std::atomic<std::uint64_t>;

// No guard of a static variable: a child that is forked meanwhile would wait for it for ever.
constinit std::atomic<Generations*> shared_page{nullptr};
constinit Generations generations{0};  // A forked child goes on counting.

}  // namespace

// One page per process, never unmapped. Once the process has made a guard, the page holds the
// number of its generation; a forked child finds 0.
std::atomic<std::uint64_t>& ForkGuard::page() {
  // Acquire, and release below: the number is constructed.
  if (auto* const page = shared_page.load(std::memory_order_acquire)) return *page;
  const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static constinit Generations otherwise{0};
  auto* const made = data == MAP_FAILED ? &otherwise : new (data) Generations(0);
  if (data != MAP_FAILED) (void)::madvise(data, size, MADV_WIPEONFORK);
  Generations* first = nullptr;
  if (!shared_page.compare_exchange_strong(first, made, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
    if (data != MAP_FAILED) ::munmap(data, size);
    return *first;
  }
  // For systems that cannot wipe the page, or say so without doing it. Relaxed: the child has one
  // thread.
  (void)::pthread_atfork(nullptr, nullptr, [] {
    shared_page.load(std::memory_order_relaxed)->store(0, std::memory_order_relaxed);
  });
  return *made;
}

ForkGuard::ForkGuard() : page_(&page()) {
  // Relaxed: a number alone. Not the process's id, which a child in another namespace may share.
  mine_ = page_->load(std::memory_order_relaxed);
  while (mine_ == 0) {
    const auto next = generations.fetch_add(1, std::memory_order_relaxed) + 1;
    if (page_->compare_exchange_strong(mine_, next, std::memory_order_relaxed)) mine_ = next;
  }
}

}  // namespace tutti::internal
