#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/record.hpp"
#include "bench/timing.hpp"

// A run with --watch: it measures all sizes again and again, each pass is a row, and the window of
// a size is its last passes.

namespace tutti::tool {

/// The windows of all sizes.
class Windows {
 public:
  static constexpr std::size_t passes = 10;

  /// `timing` outlives it.
  explicit Windows(const Timing& timing) noexcept : timing_(timing) {}

  /// Adds the row of a pass, with its samples. Returns the number of its window, which is that of
  /// its first pass among all rows, and the row over the window. `wrong` counts all passes.
  std::pair<std::size_t, Row> add(Row pass);

 private:
  struct Window {
    std::deque<Row> rows{};
    std::optional<std::int64_t> wrong{};
    std::optional<FirstWrong> first_wrong{};
  };
  Row over(const Window& window) const;

  const Timing& timing_;
  std::vector<Window> windows_{};
};

/// Prints the lines of a table that goes on: on a terminal a new line replaces the one of the same
/// name, elsewhere it follows, with the time since the start.
class LiveLines {
 public:
  /// Overwrites only on a terminal with room for `most_lines` of 80 columns.
  LiveLines(std::FILE* out, std::size_t most_lines);

  bool overwrites() const noexcept { return overwrites_; }
  /// Both texts end with a newline. A heading is printed when it changes.
  void heading(const std::string& name, const std::string& text);
  void line(const std::string& name, std::string text);

 private:
  using Clock = std::chrono::steady_clock;
  bool known(const std::string& name) const;

  std::FILE* out_;
  bool overwrites_;
  Clock::time_point start_ = Clock::now();
  std::string last_heading_{};
  std::vector<std::string> lines_{};  // The names of all lines; empty in the lines of a heading.
};

}  // namespace tutti::tool
