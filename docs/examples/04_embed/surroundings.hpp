#pragma once

#include <sys/types.h>

#include <array>
#include <set>
#include <string>
#include <vector>

// State of the process that a library could change.

/// The environment variables, as "NAME=value".
std::vector<std::string> environment();

/// Handler, flags and mask of every signal.
std::vector<std::string> signal_actions();

/// The signals that the calling thread blocks.
std::set<int> signal_mask();

/// Redirects stdout and stderr to an unnamed file.
class Capture {
 public:
  Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// Restores both. Returns the number of bytes written. Call it once.
  off_t end();

 private:
  int file_;
  std::array<int, 2> saved_;
};
