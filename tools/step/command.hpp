#pragma once

#include "common/option.hpp"
#include "step/options.hpp"

namespace tutti::tool {

/// The options of `tutti bench step`, which set `to`; check_step() completes it.
OptionList step_options(StepOptions& to);

/// Interprets options that depend on each other. @throws Failure usage.
void check_step(StepOptions& options);

}  // namespace tutti::tool
