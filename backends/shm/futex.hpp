#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::backend::shm {

// The kernel compares the word itself, so the atomic has to be that word.
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Sleeps until a wake-up, at most for `time`, unless the word differs from `seen`. May return
/// early.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::chrono::nanoseconds time) noexcept;
/// Wakes all threads that sleep on the word, in every process.
void futex_wake(const std::atomic<std::uint32_t>& word) noexcept;

/// Tells the processor that this thread polls.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The number of polls of a rank before it sleeps.
struct Polling {
  int pauses = 0;  ///< 0 if the ranks outnumber the cores. A pause is about 50 ns.
  int yields = 0;

  static constexpr Polling of(std::size_t ranks, std::size_t cores) noexcept {
    return ranks <= cores ? Polling{1000, 100} : Polling{0, 100};
  }
  /// True when ready() has become true, false when it is time to sleep.
  template <typename Ready>
  bool until(const Ready& ready) const {
    if (ready()) return true;
    for (int i = 0; i < pauses; ++i) {
      pause();
      if (ready()) return true;
    }
    return yield_until(ready);
  }

 private:
  template <typename Ready>
  bool yield_until(const Ready& ready) const {
    for (int i = 0; i < yields; ++i) {
      yield();
      if (ready()) return true;
    }
    return false;
  }
  static void yield() noexcept;
};

}  // namespace tutti::backend::shm
