#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "record.hpp"

namespace tutti::tool {

/// One line on a terminal that says how far the run is. Silent on anything else.
class Progress {
 public:
  Progress(std::FILE* err, bool wanted, std::int64_t rows);

  void before_row(const Key& key, std::int64_t bytes);
  void after_row(const Row& row);
  /// Takes the line away, so that something else can be printed.
  void clear();

 private:
  std::FILE* err_;
  bool on_;
  std::int64_t rows_;
  std::int64_t done_ = 0;
  std::optional<double> last_gbps_{};
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tutti::tool
