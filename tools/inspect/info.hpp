#pragma once

#include <string>

namespace tutti::tool {

/// The version, the backends of this build and the reasons of the choice of "auto", as text or as
/// JSON.
std::string info_text();
std::string info_json();

}  // namespace tutti::tool
