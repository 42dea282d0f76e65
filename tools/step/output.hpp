#pragma once

#include <string>

#include "step/options.hpp"
#include "step/record.hpp"

namespace tutti::tool {

/// The settings of a run as text; equal on ranks with the same options.
std::string describe_plan(const StepOptions& options);

/// A run in every format. Both arguments outlive it.
Report step_report(const StepRecord& record, const StepOptions& options);

/// The JSON Schema of the output of `tutti bench step -f json`.
std::string step_schema();

}  // namespace tutti::tool
