#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace [[gnu::visibility("default")]] tutti {

/// Levels of messages, the most severe first. A logger of one level drops the messages of those
/// after it; `off` drops all.
enum class LogLevel : std::uint8_t { off, error, warning, info, debug };

/// Receives one message, without a newline. Called from any thread, including the library's own.
/// Must neither throw nor call the group that it logs for.
using Logger = std::function<void(LogLevel, std::string_view message)>;

/// A logger that writes to stderr at the level of TUTTI_LOG: off, error, warning (the default),
/// info or debug. The variable is read by this call. Another value counts as warning here;
/// ProcessGroup::create() and init() refuse it, unless GroupOptions::logger is set.
Logger default_logger();

}  // namespace tutti
