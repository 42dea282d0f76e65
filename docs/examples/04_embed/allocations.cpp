#include "allocations.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>

#include <atomic>
#include <cstddef>

// glibc's names of its allocator, for programs that replace malloc. operator new calls malloc.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* data);
}

namespace allocations {
namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> counted{0};

void count() noexcept {
  if (counting.load(std::memory_order_relaxed)) counted.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void start() noexcept {
  counted = 0;
  counting = true;
}

std::int64_t stop() noexcept {
  counting = false;
  return counted;
}

}  // namespace allocations

extern "C" {

void* malloc(std::size_t bytes) {
  allocations::count();
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) {
  allocations::count();
  return __libc_calloc(count, bytes);
}

void* realloc(void* old, std::size_t bytes) {
  allocations::count();
  return __libc_realloc(old, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  allocations::count();
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return memalign(alignment, bytes);
}

int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  void* const data = memalign(alignment, bytes);
  if (data == nullptr) return ENOMEM;
  *out = data;
  return 0;
}

void free(void* data) {
  __libc_free(data);
}

void* mmap(void* where, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  allocations::count();
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, where, bytes, protection, flags, file, offset));
}

}  // extern "C"
