#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <tutti/deadline.hpp>

namespace tutti::internal {

/// Admits one log line a minute, and counts the events without one. A value type.
class LogLimit {
 public:
  using Clock = Deadline::Clock;
  static constexpr auto interval = std::chrono::minutes(1);

  /// Counts an event. Returns the number of events since the last line if a line is due, otherwise
  /// nothing.
  std::optional<std::uint64_t> count(Clock::time_point now) {
    ++events_;
    return due(now);
  }
  /// The same without an event; nothing if there was none since the last line.
  std::optional<std::uint64_t> due(Clock::time_point now) {
    if (events_ == 0 || (last_ && now - *last_ < interval)) return std::nullopt;
    last_ = now;
    const auto events = events_;
    events_ = 0;
    return events;
  }

 private:
  std::uint64_t events_ = 0;
  std::optional<Clock::time_point> last_{};
};

/// The moments at which a rank that waits for a connection says why: 10 s after it began, and then
/// each minute. A value type.
class WaitWarnings {
 public:
  using Clock = Deadline::Clock;
  explicit WaitWarnings(Clock::time_point begun = Clock::now(),
                        std::chrono::nanoseconds first = std::chrono::seconds(10))
      : begun_(begun), next_(begun + first) {}

  /// Returns the time since the begin if a warning is due, otherwise nothing.
  std::optional<std::chrono::seconds> due(Clock::time_point now) {
    if (now < next_) return std::nullopt;
    next_ = now + LogLimit::interval;
    return std::chrono::round<std::chrono::seconds>(now - begun_);
  }

 private:
  Clock::time_point begun_;
  Clock::time_point next_;
};

}  // namespace tutti::internal
