#include <tutti/log.hpp>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "values/fail.hpp"
#include "values/log_level.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

std::string_view level_text() {
  const char* text = std::getenv("TUTTI_LOG");
  return text == nullptr ? "" : text;
}

/// Empty if there is no such level.
std::optional<LogLevel> parse_level(std::string_view name) {
  if (name.empty() || name == "warning") return LogLevel::warning;
  if (name == "off") return LogLevel::off;
  if (name == "error") return LogLevel::error;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return std::nullopt;
}

const char* label(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warning:
      return "warning";
    case LogLevel::info:
      return "info";
    default:
      return "debug";
  }
}

}  // namespace

Logger default_logger() {
  const auto limit = parse_level(level_text()).value_or(LogLevel::warning);
  return [limit](LogLevel level, std::string_view message) {
    if (level == LogLevel::off || level > limit) return;
    // One write per line, so that lines of several threads do not mix.
    std::string line = "tutti: ";
    line.append(label(level)).append(": ").append(message).append("\n");
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
}

}  // namespace tutti

namespace tutti::internal {

void check_log_level() {
  const auto text = level_text();
  if (!parse_level(text))
    failf(Errc::invalid_argument,
          "TUTTI_LOG is '{}'; it must be off, error, warning, info or debug", text);
}

}  // namespace tutti::internal
