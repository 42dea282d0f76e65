#include "bench/progress.hpp"

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {

Progress::Progress(std::FILE* err, bool wanted, std::int64_t rows, std::chrono::nanoseconds silence)
    : err_(err),
      terminal_(wanted && isatty(fileno(err)) != 0),
      rows_(rows),
      silence_(silence),
      start_(Clock::now()),
      last_word_(start_) {
  if (wanted && !terminal_)
    beating_ = std::jthread([this](const std::stop_token& stop) { beat(stop); });
}

/// "all_reduce 32 MiB [12/29] ▓▓▓▓░░ 0.74 GB/s  ETA 0:21".
std::string Progress::text(std::string_view bar) const {
  std::string line = fmt::format("{} [{}/{}]{}", doing_, std::min(done_ + 1, rows_), rows_, bar);
  if (last_gbps_) line += fmt::format(" {:.2f} GB/s", *last_gbps_);
  if (done_ > 0) {
    const double spent = seconds(Clock::now() - start_);
    line += fmt::format("  ETA {}", format_clock(spent / static_cast<double>(done_) *
                                                 static_cast<double>(rows_ - done_)));
  }
  return line;
}

void Progress::before_row(const Key& key, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  doing_ = fmt::format("{} {}", key.coll, format_bytes(bytes));
  if (!terminal_) return;
  constexpr std::int64_t cells = 6;
  std::string bar = " ";
  for (std::int64_t i = 0; i < cells; ++i) bar += i * rows_ < done_ * cells ? "▓" : "░";
  fmt::print(err_, "\r\x1b[K{}", text(bar));
  std::fflush(err_);
}

void Progress::after_row(const Row& row) {
  const std::lock_guard lock(mutex_);
  ++done_;
  last_gbps_ = row.busbw ? row.busbw : row.algbw;
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  last_word_ = Clock::now();
  if (!terminal_) return;
  fmt::print(err_, "\r\x1b[K");
  std::fflush(err_);
}

void Progress::beat(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    // Times out, because nothing notifies; `stop` ends the wait at the end of the run.
    wake_.wait_until(lock, stop, last_word_ + silence_, [] { return false; });
    if (stop.stop_requested() || Clock::now() < last_word_ + silence_) continue;
    fmt::print(err_, "{}\n", text(""));
    std::fflush(err_);
    last_word_ = Clock::now();
  }
}

}  // namespace tutti::tool
