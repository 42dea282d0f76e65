#pragma once

#include <cstdio>
#include <string>

#include "common/exit_code.hpp"
#include "common/option.hpp"
#include "step/options.hpp"
#include "step/record.hpp"

namespace tutti::tool {

/// The options of `tutti bench step`, which set `to`; check_step() completes it.
OptionList step_options(StepOptions& to);
/// Interprets options that depend on each other. @throws Failure usage.
void check_step(StepOptions& options);

/// The settings of a run as text; equal on ranks with the same options.
std::string describe_plan(const StepOptions& options);

/// A run in every format. Both arguments outlive it.
Report step_report(const StepRecord& record, const StepOptions& options);
/// The JSON Schema of the output of `tutti bench step -f json`.
std::string step_schema();

/// Runs `tutti bench step`. Writes results to `out`, errors to `err`. @throws Failure for errors
/// before the first measurement.
Exit run_step(const StepOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
