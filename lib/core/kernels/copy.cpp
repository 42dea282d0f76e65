#include "kernels/copy.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tutti::internal {

std::size_t last_level_cache() noexcept {
  static const long found =
      std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), ::sysconf(_SC_LEVEL2_CACHE_SIZE));
  return found > 0 ? static_cast<std::size_t>(found) : std::size_t{32} << 20;
}

#if defined(__SSE2__)

void copy_past_cache(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t line = 64;
  constexpr std::size_t worthwhile = 64 * line;  // A fence costs as much as some lines.
  if (bytes < worthwhile) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  // Up to the beginning of a line, because a line that is written in part is read first.
  const auto head = (line - reinterpret_cast<std::uintptr_t>(target) % line) % line;
  std::memcpy(target, source, head);
  std::size_t done = head;
  for (; bytes - done >= line; done += line) {
    const auto* in = reinterpret_cast<const __m128i*>(source + done);
    auto* out = reinterpret_cast<__m128i*>(target + done);
    const auto a = _mm_loadu_si128(in);
    const auto b = _mm_loadu_si128(in + 1);
    const auto c = _mm_loadu_si128(in + 2);
    const auto d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(target + done, source + done, bytes - done);
  // Such stores become visible in any order; the fence comes before the caller's next store.
  _mm_sfence();
}

#else

void copy_past_cache(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

#endif

}  // namespace tutti::internal
