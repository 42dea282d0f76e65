#pragma once

#include <map>
#include <string>
#include <vector>

namespace tutti::tool {

/// The variables that may enter a record: those that affect measurements, and variables that match
/// one of `more` (shell patterns). Other variables may hold tokens, paths or names.
std::map<std::string, std::string> allowed_environment(const std::vector<std::string>& more);

}  // namespace tutti::tool
