#pragma once

#include <cstdio>

#include "common/exit_code.hpp"
#include "pairs/options.hpp"

namespace tutti::tool {

/// Runs `tutti pairs`. Writes results to `out`, errors to `err`. @throws Failure for errors before
/// the first measurement.
Exit run_pairs(const PairsOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
