#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "bench/bench.hpp"
#include "bench/record.hpp"

namespace tutti::tool {

using Json = nlohmann::ordered_json;

/// A run as schema() describes it.
Json to_json(const BenchRecord& record, const BenchOptions& options);

/// As text; numbers are printed so that reading them gives the same bits. -1: on one line.
std::string dump(const Json& json, int indent);

}  // namespace tutti::tool
