#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace tutti::tool {

/// Reads "0.5s", "20ms", "10m"; units ns, us, ms, s, m, h. Huge values saturate.
/// @throws Failure usage, naming `option` and the text.
std::chrono::nanoseconds parse_duration(std::string_view option, std::string_view text);

/// "0.5 s", "20 ms", "10 m".
std::string format_duration(std::chrono::nanoseconds duration);

constexpr double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace tutti::tool
