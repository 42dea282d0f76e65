#include "failing_allocation.hpp"

#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string_view>

namespace tutti::test {
namespace {

/// The addresses at which a library has been loaded.
struct Range {
  std::uintptr_t base = 0;
  std::uintptr_t end = 0;
  bool has(std::uintptr_t address) const { return address >= base && address < end; }
};

Range find_library(const char* name) {
  struct Search {
    std::string_view name;
    Range found{};
  } search{name};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& its = *static_cast<Search*>(data);
        if (std::string_view(info->dlpi_name).find(its.name) == std::string_view::npos) return 0;
        its.found.base = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          its.found.end = std::max(its.found.end, its.found.base + info->dlpi_phdr[i].p_vaddr +
                                                      info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      &search);
  return search.found;
}

// Constant-initialized, because operator new is used before main().
constinit Range library{};
constinit Range gloo{};
constinit std::atomic<std::int64_t> left{0};  // Until the failing allocation; 0: none fails.
constinit std::atomic<bool> has_failed{false};
constinit Frames* frames = nullptr;

/// The calls above an allocation. It is the library's if the innermost frame of the library or of
/// Gloo is the library's: templates may be in the standard library or in the test.
struct Calls {
  Frames addresses{};
  std::size_t count = 0;
  bool decided = false;
  bool of_library = false;
};

_Unwind_Reason_Code visit(_Unwind_Context* context, void* data) {
  auto& calls = *static_cast<Calls*>(data);
  const auto address = static_cast<std::uintptr_t>(_Unwind_GetIP(context));
  const bool of_library = library.has(address);
  if (calls.count < calls.addresses.size())
    calls.addresses[calls.count++] = of_library ? address - library.base - 1 : 0;
  if (!calls.decided && (of_library || gloo.has(address))) {
    calls.decided = true;
    calls.of_library = of_library;
  }
  return calls.decided && !calls.of_library ? _URC_END_OF_STACK : _URC_NO_REASON;
}

}  // namespace

bool allocation_fails() noexcept {
  if (left.load(std::memory_order_relaxed) == 0) return false;
  Calls calls;
  _Unwind_Backtrace(visit, &calls);
  if (!calls.of_library || left.load() <= 0 || left.fetch_sub(1) != 1) return false;
  *frames = calls.addresses;
  has_failed = true;
  return true;
}

namespace {

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (allocation_fails()) return nullptr;
  if (bytes == 0) bytes = 1;
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(bytes)
             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* data = allocate(bytes, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void fail_allocation(std::int64_t n, Frames& into) noexcept {
  library = find_library("libtutti.so");
  gloo = find_library("libgloo.so");
  has_failed = false;
  frames = &into;
  left = n;
}

bool end_failing() noexcept {
  left = 0;
  return has_failed;
}

}  // namespace tutti::test

// Not inlined, because GCC would warn that malloc() and free() do not match the operators.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return tutti::test::allocate_or_throw(bytes, 1);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return tutti::test::allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return tutti::test::allocate(bytes, 1);
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, const std::nothrow_t&) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}
