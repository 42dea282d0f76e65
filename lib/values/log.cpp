#include <tutti/log.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace [[gnu::visibility("default")]] tutti {
namespace {

LogLevel parse_level(const char* text) {
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "off") return LogLevel::off;
  if (name == "error") return LogLevel::error;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return LogLevel::warning;
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
  return [limit = parse_level(std::getenv("TUTTI_LOG"))](LogLevel level, std::string_view message) {
    if (level == LogLevel::off || level > limit) return;
    // One write per line, so that lines of several threads do not mix.
    std::string line = "tutti: ";
    line.append(label(level)).append(": ").append(message).append("\n");
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
}

}  // namespace tutti
