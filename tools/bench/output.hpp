#pragma once

#include <string>

#include "bench/options.hpp"
#include "bench/record.hpp"

namespace tutti::tool {

/// A run in every format but the table, which is printed during the run. Both arguments outlive it.
Report bench_report(const BenchRecord& record, const BenchOptions& options);

/// The JSON Schema of the output of `tutti bench -f json`.
std::string bench_schema();

}  // namespace tutti::tool
