#pragma once

#include <span>
#include <string>
#include <string_view>

#include "report/fields.hpp"

// The JSON that the tool prints.

namespace tutti::tool {

/// The object as JSON text; numbers are printed so that reading returns the same bits.
std::string to_json(const Field& object);

/// The JSON Schema (draft 2020-12) of to_json() for values of this type.
std::string json_schema(std::string_view id, std::string_view title, const Field& object);

/// The rows of a run for other programs. Each row begins with the fields of the run that `shared`
/// names. The name of a field is its path in the JSON: "time_us.p50", "backend.name". Every line
/// ends with a newline.
/// @{
/// One JSON object per line.
std::string to_ndjson(const Field& run, std::span<const std::string_view> shared);
/// RFC 4180 with a header line; null is an empty field, the items of a list are separated by
/// spaces.
std::string to_csv(const Field& run, std::span<const std::string_view> shared);
/// @}

}  // namespace tutti::tool
