#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace tutti::internal {

/// Limits the time for which the calls of this thread wait for the answer of a TCP store, while it
/// lives. Store::get() has a deadline of its own. A call that has timed out may still be done.
class AnswerLimit {
 public:
  explicit AnswerLimit(std::chrono::nanoseconds limit) noexcept
      : outer_(std::exchange(current_, std::min(current_, limit))) {}
  ~AnswerLimit() { current_ = outer_; }
  AnswerLimit(const AnswerLimit&) = delete;
  AnswerLimit& operator=(const AnswerLimit&) = delete;

  static std::chrono::nanoseconds current() noexcept { return current_; }

 private:
  static inline thread_local std::chrono::nanoseconds current_ = std::chrono::nanoseconds::max();
  const std::chrono::nanoseconds outer_;
};

}  // namespace tutti::internal
