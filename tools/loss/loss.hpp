#pragma once

#include <cstdio>

#include "common/exit_code.hpp"
#include "loss/options.hpp"

namespace tutti::tool {

/// Computes each loss on one process and on the ranks, compares and times them; the output goes to
/// `out`, errors to `err`.
/// @return wrong_data when a number differs by more than the tolerance.
/// @throws Failure for what stops it before anything was computed.
Exit run_loss(const LossOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
