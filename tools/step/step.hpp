#pragma once

#include <cstdio>

#include "common/exit_code.hpp"
#include "step/options.hpp"

namespace tutti::tool {

/// Runs `tutti bench step`. Writes results to `out`, errors to `err`. @throws Failure for errors
/// before the first measurement.
Exit run_step(const StepOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
