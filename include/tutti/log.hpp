#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace [[gnu::visibility("default")]] tutti {

enum class LogLevel : std::uint8_t { off, error, warning, info, debug };

/// Takes one message, without a newline. Called from any thread, also the library's own; must not
/// throw and must not call the group it logs for.
using Logger = std::function<void(LogLevel, std::string_view message)>;

/// Writes to stderr what TUTTI_LOG allows: off, error, warning (the default), info or debug. The
/// variable is read when this is called.
Logger default_logger();

}  // namespace tutti
