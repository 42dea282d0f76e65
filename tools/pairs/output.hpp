#pragma once

#include <string>

#include "pairs/options.hpp"

namespace tutti::tool {

/// The settings of a run as text; equal on ranks with the same options.
std::string describe_plan(const LinkTiming& timing);

/// A line for each slow rank and link, at most eight and the number of the rest.
std::string slow_lines(const std::vector<Slow>& slow);

/// A run in every format. Both arguments outlive it.
Report pairs_report(const PairsRecord& record, const PairsOptions& options);

/// The JSON Schema of the output of `tutti pairs -f json`.
std::string pairs_schema();

}  // namespace tutti::tool
