#pragma once

#include <string>

#include "bench/options.hpp"
#include "bench/record.hpp"

namespace tutti::tool {

/// A run in every format but the table, which is printed while the run goes on. Both arguments
/// outlive it.
Report bench_report(const BenchRecord& record, const BenchOptions& options);

/// The JSON Schema of what `tutti bench -f json` prints.
std::string bench_schema();

}  // namespace tutti::tool
