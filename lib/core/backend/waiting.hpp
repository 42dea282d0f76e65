#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

// The wait of a rank for another rank of its host: the rank polls a word for a short time, yields
// its core for a short time, and then sleeps until it is woken.

namespace tutti::internal {

// The kernel compares the word itself, so the atomic has to be that word.
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// The sharers of a word. The kernel finds the sleepers of threads faster.
enum class Sharing : std::uint8_t { threads, processes };

/// Sleeps until a wake-up, at most for `time`, unless the word differs from `seen`. May return
/// early.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::chrono::nanoseconds time, Sharing sharing) noexcept;
/// Wakes all threads that sleep on the word with the same `sharing`.
void futex_wake(const std::atomic<std::uint32_t>& word, Sharing sharing) noexcept;

/// Tells the processor that this thread polls. Takes 1 to 50 ns.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Asks for the cache line of `data`, which this core writes soon: the store then needs no exchange
/// with the core that has read the line.
inline void expect_write(const void* data) noexcept {
#if defined(__x86_64__)
  // __builtin_prefetch(data, 1) is a prefetch for reading unless the target has an option.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(data)));
#else
  __builtin_prefetch(data, 1);
#endif
}

/// A sequentially consistent fence. GCC warns of fences with ThreadSanitizer, which does not see
/// that they order other accesses; here they order sequentially consistent ones.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
  std::atomic_thread_fence(std::memory_order_seq_cst);
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic pop
#endif
}

/// The polls of a rank before it sleeps. Called from any thread.
class Polling {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int yields = 100;
  /// Of ranks that outnumber the cores, if a poll is a system call, which takes the cores from the
  /// other ranks.
  static constexpr int few_yields = 10;
  static constexpr std::chrono::microseconds pausing{50};
  static constexpr std::chrono::milliseconds yielding{1};

  /// The pauses that take TUTTI_POLL_NS; by default 64, if these take at most 2 us. `poll`: the
  /// time that each poll takes beside them.
  static int pauses_in_a_row(std::chrono::nanoseconds poll = {});

  /// So many ranks share so many cores. If the ranks outnumber the cores, they do not pause.
  /// `poll`: the time that ready() takes, if that is longer than a pause.
  /// @throws Error invalid_argument if TUTTI_POLL_NS is not a number.
  Polling(std::size_t ranks, std::size_t cores, std::chrono::nanoseconds poll = {})
      : pauses_(ranks <= cores ? pauses_in_a_row(poll) : 0),
        yields_(ranks <= cores || poll.count() == 0 ? yields : few_yields),
        longest_(std::max<Clock::duration>(
            yielding, static_cast<std::int64_t>(ranks / std::max<std::size_t>(cores, 1)) * turn)) {}

  /// True when ready() has become true, false when it is time to sleep: after 100 yields (or 10:
  /// few_yields) or 1 ms. With more than 10 ranks per core the time is 0.1 ms for each of them,
  /// because a yield takes as long as the turns of the others. In the first 50 us a rank pauses
  /// after each yield. It yields early, because the rank that it waits for may be on the same core.
  template <typename Ready>
  bool until(const Ready& ready) noexcept {
    return shortly(ready) || longer(ready);
  }
  /// The first pauses of until(), which read no clock: most waits end with them.
  template <typename Ready>
  bool shortly(const Ready& ready) noexcept {
    return ready() || pause_few(ready);
  }
  /// The rest of until(). `give_core`: for tests.
  template <typename Ready>
  bool longer(const Ready& ready, void (*give_core)() noexcept = yield) noexcept {
    // Relaxed: a count without data. Threads that meet here may count one wait too many or too few.
    if (unyielding_.load(std::memory_order_relaxed) > 0) {
      unyielding_.fetch_sub(1, std::memory_order_relaxed);
      return false;
    }
    const auto start = Clock::now();
    for (int i = 0; i < yields_; ++i) {
      const auto before = Clock::now();
      give_core();
      const auto now = Clock::now();
      const auto spent = now - start;
      // One yield was long: another program took the core for a time slice, and would do so again.
      // Among ranks that outnumber the cores it was another rank.
      if (now - before >= longest_ && yields_ == yields)
        unyielding_.store(waits_without_yields, std::memory_order_relaxed);
      const bool is_ready = ready();
      if (is_ready || spent >= longest_) return is_ready;
      if (pauses_ != 0 && spent < pausing && pause_few(ready)) return true;
    }
    return false;
  }

 private:
  template <typename Ready>
  bool pause_few(const Ready& ready) const noexcept {
    for (int i = 0; i < pauses_; ++i) {
      pause();
      if (ready()) return true;
    }
    return false;
  }
  static void yield() noexcept;

  static constexpr int waits_without_yields = 1000;
  static constexpr std::chrono::microseconds turn{100};  // Of a rank, between two yields.
  int pauses_;  // In a row, before a clock is read or the core is yielded.
  int yields_;
  // Of all yields. After a single yield of this length another program has the core.
  Clock::duration longest_;
  std::atomic<int> unyielding_{0};  // The number of next waits that do not yield.
};

/// The limits of Polling in words, for `tutti info`.
std::string describe_polling(std::size_t cores);

}  // namespace tutti::internal
