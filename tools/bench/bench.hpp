#pragma once

#include <cstdio>

#include "bench/options.hpp"
#include "common/exit_code.hpp"

namespace tutti::tool {

/// Runs `tutti bench`. Writes results to `out`, progress and errors to `err`. @throws Failure for
/// errors before the first measurement.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
