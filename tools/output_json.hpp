#pragma once

#include <string>

#include "bench.hpp"
#include "record.hpp"

namespace tutti::tool {

/// A run as the JSON of schema(), ending with a newline.
std::string to_json(const Record& record, const BenchOptions& options);

}  // namespace tutti::tool
