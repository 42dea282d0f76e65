#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tutti::tool {

/// What the process ends with. All ranks end with the largest of theirs.
enum class Exit : int {
  ok = 0,
  gate = 1,  // A gate failed or a run got slower (later subcommands).
  wrong_data = 2,
  usage = 64,
  unavailable = 69,  // The backend or the launch cannot be had here.
  internal = 70,
  skipped = 77,  // `unavailable` under --skip-unavailable; meson and automake read it as "skipped".
  timeout = 124,
  interrupted = 130
};

/// Ends the program with one line on stderr.
class Failure : public std::runtime_error {
 public:
  Failure(Exit code, const std::string& line) : std::runtime_error(line), code_(code) {}
  Exit code() const noexcept { return code_; }

 private:
  Exit code_;
};

/// The user has to type something else. The line says what was seen, what was expected and what
/// to change.
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(Exit::usage, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tutti::tool
