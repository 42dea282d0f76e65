#pragma once

#include <string>

namespace tutti::tool {

/// The JSON Schema (draft 2020-12) of what `tutti loss -f json` prints.
std::string loss_schema();

}  // namespace tutti::tool
