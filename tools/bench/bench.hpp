#pragma once

#include <cstdio>

#include "bench/options.hpp"
#include "common/exit_code.hpp"

namespace tutti::tool {

/// Measures; the output goes to `out`, talk and errors to `err`.
/// @throws Failure for what stops it before anything was measured.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
