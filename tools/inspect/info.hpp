#pragma once

#include <string>

namespace tutti::tool {

/// What this is, what is built and why "auto" picks what, as text or as JSON.
std::string info_text();
std::string info_json();

}  // namespace tutti::tool
