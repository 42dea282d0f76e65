#pragma once

#include <map>
#include <string>
#include <vector>

namespace tutti::tool {

/// The variables that may enter a record: those that change what is measured. Everything else
/// (tokens, paths, names) stays out unless one of `more` (shell patterns) lets it in.
std::map<std::string, std::string> allowed_environment(const std::vector<std::string>& more);

}  // namespace tutti::tool
