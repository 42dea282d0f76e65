#include "progress.hpp"

#include <unistd.h>

#include <string>

#include <fmt/format.h>

#include "duration.hpp"
#include "text.hpp"

namespace tutti::tool {

Progress::Progress(std::FILE* err, bool wanted, std::int64_t rows)
    : err_(err),
      on_(wanted && isatty(fileno(err)) != 0),
      rows_(rows),
      start_(std::chrono::steady_clock::now()) {}

void Progress::before_row(const Key& key, std::int64_t bytes) {
  if (!on_) return;
  constexpr std::int64_t cells = 6;
  std::string bar;
  for (std::int64_t i = 0; i < cells; ++i) bar += i * rows_ < done_ * cells ? "▓" : "░";
  std::string line =
      fmt::format("{} {} [{}/{}] {}", key.coll, format_bytes(bytes), done_ + 1, rows_, bar);
  if (last_gbps_) line += fmt::format(" {:.2f} GB/s", *last_gbps_);
  if (done_ > 0) {
    const double spent = seconds(std::chrono::steady_clock::now() - start_);
    line += fmt::format("  ETA {}", format_clock(spent / static_cast<double>(done_) *
                                                 static_cast<double>(rows_ - done_)));
  }
  fmt::print(err_, "\r\x1b[K{}", line);
  std::fflush(err_);
}

void Progress::after_row(const Row& row) {
  ++done_;
  last_gbps_ = row.busbw ? row.busbw : row.algbw;
}

void Progress::clear() {
  if (!on_) return;
  fmt::print(err_, "\r\x1b[K");
  std::fflush(err_);
}

}  // namespace tutti::tool
