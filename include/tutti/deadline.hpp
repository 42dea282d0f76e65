#pragma once

#include <chrono>

namespace [[gnu::visibility("default")]] tutti {

/// A moment after which a call gives up. A value type; `{.deadline = 5s}` counts from now.
///
/// A default-made Deadline is "not set": a timeout applies (CallOptions::timeout). Unlimited
/// waiting must be explicit: Deadline::none().
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;  ///< Monotonic; not the time of day.

  constexpr Deadline() noexcept = default;

  /// Counts from now. Huge durations saturate to none(); zero and below expire at once.
  template <typename Rep, typename Period>
  Deadline(std::chrono::duration<Rep, Period> from_now) : Deadline(after(saturate(from_now))) {}

  /// No limit.
  static constexpr Deadline none() noexcept { return Deadline(Clock::time_point::max()); }
  /// A moment. Clock::time_point::max() is none(), min() is "not set".
  static constexpr Deadline at(Clock::time_point when) noexcept { return Deadline(when); }
  /// Counts from now, as the constructor.
  static Deadline after(std::chrono::nanoseconds from_now) noexcept {
    const auto now = Clock::now();
    return from_now >= Clock::time_point::max() - now ? none() : Deadline(now + from_now);
  }

  /// False if default-made: a timeout applies.
  constexpr bool is_set() const noexcept { return when_ != Clock::time_point::min(); }
  /// True for none().
  constexpr bool is_none() const noexcept { return when_ == Clock::time_point::max(); }
  /// True from the moment on; false without a limit.
  bool expired() const noexcept { return is_set() && !is_none() && Clock::now() >= when_; }

  /// Time left, never negative; nanoseconds::max() without a limit.
  std::chrono::nanoseconds remaining() const noexcept {
    if (!is_set() || is_none()) return std::chrono::nanoseconds::max();
    const auto now = Clock::now();
    return now >= when_ ? std::chrono::nanoseconds(0) : when_ - now;
  }
  /// The moment; Clock::time_point::max() without a limit.
  constexpr Clock::time_point time() const noexcept {
    return is_set() ? when_ : Clock::time_point::max();
  }

  /// Converts any duration to nanoseconds, clamped to 0 .. nanoseconds::max().
  template <typename Rep, typename Period>
  static constexpr std::chrono::nanoseconds saturate(std::chrono::duration<Rep, Period> d) {
    using Wide = std::chrono::duration<long double, std::nano>;
    const auto ns = std::chrono::duration_cast<Wide>(d).count();
    if (ns >= 9.2e18L) return std::chrono::nanoseconds::max();
    if (!(ns > 0)) return std::chrono::nanoseconds(0);
    return std::chrono::nanoseconds(static_cast<std::chrono::nanoseconds::rep>(ns));
  }

 private:
  constexpr explicit Deadline(Clock::time_point when) noexcept : when_(when) {}
  Clock::time_point when_ = Clock::time_point::min();  // min(): not set.
};

}  // namespace tutti
