#pragma once

#include <string_view>

namespace tutti::tool {

/// The JSON Schema (draft 2020-12) of what `tutti bench -f json` prints.
std::string_view schema();

}  // namespace tutti::tool
