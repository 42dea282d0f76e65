#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tutti::tool {

/// Exit status of the process. Ranks that are processes exit with the status on which rank 0
/// decides.
enum class Exit : int {
  ok = 0,
  wrong_data = 2,
  found = 3,  // diagnose, doctor or bench --links found something wrong. 1: tutti-report's.
  usage = 64,
  unavailable = 69,  // The backend or the launch is not available here.
  internal = 70,
  skipped = 77,  // `unavailable` under --skip-unavailable; meson and automake read it as "skipped".
  timeout = 124,
  interrupted = 130
};

/// An error that ends the command. The text is one line for stderr.
class Failure : public std::runtime_error {
 public:
  Failure(Exit code, const std::string& line) : std::runtime_error(line), code_(code) {}
  Exit code() const noexcept { return code_; }

 private:
  Exit code_;
};

/// Reports a usage error. The text has the value, the expected values and the change to make.
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(Exit::usage, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tutti::tool
