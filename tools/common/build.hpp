#pragma once

#include <string>

namespace tutti::tool {

/// The output of `git describe` at build time, or "unknown".
std::string git_version();
/// "g++ 12.2.0".
std::string compiler();
/// "release".
std::string build_type();

}  // namespace tutti::tool
