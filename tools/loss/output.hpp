#pragma once

#include <string>

#include "loss/options.hpp"
#include "loss/record.hpp"

namespace tutti::tool {

/// The problem and the number of calls, as text; equal on ranks with the same plan.
std::string describe_plan(const LossOptions& options, const RowLayout& layout);

/// A run in every format. Both arguments outlive it.
Report loss_report(const LossRecord& record, const LossOptions& options);

/// The JSON Schema of the output of `tutti loss -f json`.
std::string loss_schema();

}  // namespace tutti::tool
