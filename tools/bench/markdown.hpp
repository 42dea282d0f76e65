#pragma once

#include <string>
#include <vector>

#include "bench/record.hpp"

namespace tutti::tool {

/// A run as Markdown: a table for every sweep with these percentiles as columns.
std::string to_markdown(const BenchRecord& record, const std::vector<double>& percentiles);

}  // namespace tutti::tool
