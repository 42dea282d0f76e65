#pragma once

#include <string>

#include "loss/options.hpp"
#include "loss/record.hpp"

namespace tutti::tool {

/// The problem and how often it is computed, as text: the same on ranks that do the same.
std::string describe_plan(const LossOptions& options, const RowLayout& layout);

/// A run in every format. Both arguments outlive it.
Report loss_report(const LossRecord& record, const LossOptions& options);

/// The JSON Schema of what `tutti loss -f json` prints.
std::string loss_schema();

}  // namespace tutti::tool
