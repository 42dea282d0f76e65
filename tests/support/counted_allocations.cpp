#include "support/counted_allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting = false;
std::atomic<std::uint64_t> allocations = 0;

void count_one() noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  count_one();
  if (bytes == 0) bytes = 1;
  void* data = alignment <= alignof(std::max_align_t)
                   ? std::malloc(bytes)
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// Not inlined, because GCC would warn that malloc() and free() do not match the operators.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return allocate(bytes, 1);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace tutti::test {

void begin_counting() noexcept {
  allocations = 0;
  counting = true;
}

std::uint64_t end_counting() noexcept {
  counting = false;
  return allocations;
}

void* CountingMemory::allocate(std::size_t bytes, Stream stream) {
  count_one();
  live_ += bytes;
  return PassingMemory::allocate(bytes, stream);
}

}  // namespace tutti::test
