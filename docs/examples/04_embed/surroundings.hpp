#pragma once

#include <sys/types.h>

#include <array>
#include <set>
#include <string>
#include <vector>

// What a library could change in the process around it.

/// The environment variables, as "NAME=value".
std::vector<std::string> environment();

/// Handler, flags and mask of every signal.
std::vector<std::string> signal_actions();

/// The signals that the calling thread blocks.
std::set<int> signal_mask();

/// Sends what anybody writes to stdout and stderr into a file without a name.
class Capture {
 public:
  Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// Puts the two back. Returns how many bytes were written. Once.
  off_t end();

 private:
  int file_;
  std::array<int, 2> saved_;
};
