#pragma once

#include <map>
#include <string>
#include <vector>

namespace tutti::tool {

/// The variables that may enter a record: those that affect measurements. Others (tokens, paths,
/// names) stay out, unless one of `more` (shell patterns) admits them.
std::map<std::string, std::string> allowed_environment(const std::vector<std::string>& more);

}  // namespace tutti::tool
