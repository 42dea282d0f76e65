#pragma once

#include <string>
#include <vector>

#include "loss/measure.hpp"
#include "loss/problem.hpp"
#include "report/output.hpp"
#include "run/source.hpp"

namespace tutti::tool {

struct LossOptions : RunOptions, OutputOptions {
  std::vector<LossKind> kinds{};
  LossPlan plan{};
  Split split = Split::uneven;
  std::vector<std::string> notes{};  ///< Notes about losses that were left out.
};

}  // namespace tutti::tool
