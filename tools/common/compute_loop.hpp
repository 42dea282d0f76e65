#pragma once

#include <chrono>
#include <cstdint>

namespace tutti::tool {

/// Processor time that this thread has used so far, in user and system mode.
std::chrono::nanoseconds thread_processor_time();

/// A loop of arithmetic in registers that stands for a program's compute. Its amount of work is
/// fixed, not its duration: it takes longer where another thread uses the same core. One thread
/// uses it.
class ComputeLoop {
 public:
  /// Measures, in processor time of this thread, the rounds that take `duration`; 0: none.
  explicit ComputeLoop(std::chrono::nanoseconds duration);

  /// All rounds of `duration`.
  std::int64_t rounds() const noexcept { return rounds_; }
  void run(std::int64_t rounds) noexcept;

 private:
  std::int64_t rounds_ = 0;
  volatile std::uint64_t state_ = 1;  // Volatile, so that the loop is not removed.
};

}  // namespace tutti::tool
