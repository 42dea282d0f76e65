#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "bench/record.hpp"

namespace tutti::tool {

/// Shows progress: on a terminal one line that is overwritten, elsewhere a new line after every
/// silent interval. One thread at a time.
class Progress {
 public:
  static constexpr std::chrono::seconds usual_silence{10};

  Progress(std::FILE* err, bool wanted, std::int64_t rows,
           std::chrono::nanoseconds silence = usual_silence);

  void before_row(const Key& key, std::int64_t bytes);
  void after_row(const Row& row);
  /// Removes the line, so that other output can be printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string text(std::string_view bar) const;
  void beat(const std::stop_token& stop);

  std::FILE* err_;
  bool terminal_;
  std::int64_t rows_;
  std::chrono::nanoseconds silence_;
  Clock::time_point start_;

  std::mutex mutex_{};  // Guards the next members, which the other thread reads.
  std::condition_variable_any wake_{};
  std::string doing_ = "waiting for all ranks";
  std::int64_t done_ = 0;
  std::optional<double> last_gbps_{};
  Clock::time_point last_word_;

  std::jthread beating_{};  // Only without a terminal. Last member, because it uses the others.
};

}  // namespace tutti::tool
