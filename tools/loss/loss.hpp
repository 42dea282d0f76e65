#pragma once

#include <cstdio>

#include "common/exit_code.hpp"
#include "loss/options.hpp"

namespace tutti::tool {

/// Computes each loss on one process and on the ranks, compares and times both. Results go to
/// `out`, errors to `err`.
/// @return wrong_data if a number differs by more than the tolerance.
/// @throws Failure for errors before the first computation.
Exit run_loss(const LossOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
