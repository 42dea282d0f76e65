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

}  // namespace tutti::internal
