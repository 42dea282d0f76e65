#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "loss/measure.hpp"
#include "loss/problem.hpp"
#include "report/output.hpp"
#include "run/source.hpp"

namespace tutti::tool {

struct LossOptions : RunOptions, OutputOptions {
  std::vector<LossKind> kinds{};
  LossPlan plan{};
  Split split = Split::uneven;
  std::vector<std::string> notes{};  ///< What was left out.
};

/// Computes each loss on one process and on the ranks, compares and times them; the output goes to
/// `out`, errors to `err`.
/// @return wrong_data when a number differs by more than the tolerance.
/// @throws Failure for what stops it before anything was computed.
Exit run_loss(const LossOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
