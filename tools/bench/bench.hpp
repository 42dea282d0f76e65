#pragma once

#include <cstdio>
#include <string>

#include "bench/options.hpp"
#include "common/exit_code.hpp"

namespace tutti::tool {

/// What must be equal on all ranks: the plan, and the options that decide on calls.
std::string fingerprint(const Plan& plan, const BenchOptions& options, int ranks);

/// Runs `tutti bench`. Writes results to `out`, progress and errors to `err`. @throws Failure for
/// errors before the first measurement.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
