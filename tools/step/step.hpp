#pragma once

#include <cstdio>

#include "common/exit_code.hpp"
#include "common/option.hpp"
#include "step/options.hpp"

namespace tutti::tool {

/// The options of `tutti bench step`, which set `to`; check_step() completes it.
OptionList step_options(StepOptions& to);
/// Interprets options that depend on each other. @throws Failure usage.
void check_step(StepOptions& options);

/// Runs `tutti bench step`. Writes results to `out`, errors to `err`. @throws Failure for errors
/// before the first measurement.
Exit run_step(const StepOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
