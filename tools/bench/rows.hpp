#pragma once

#include <string>

#include "bench/json.hpp"

namespace tutti::tool {

/// The rows of a run for other programs: each stands alone, with what it shares with the others.
/// A column's name is its path in the JSON: "time_us.p50", "backend.name". Both end every row
/// with a newline.

/// One JSON object per line.
std::string to_ndjson(const Json& run);

/// RFC 4180 with a header line; null is an empty field, a list has spaces between its items.
std::string to_csv(const Json& run);

}  // namespace tutti::tool
