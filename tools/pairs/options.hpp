#pragma once

#include <chrono>

#include "pairs/links.hpp"
#include "report/output.hpp"
#include "report/record.hpp"
#include "run/source.hpp"

namespace tutti::tool {

struct PairsOptions : RunOptions, OutputOptions {
  LinkTiming timing{};
  /// Time for which rank 0 waits for the other ranks' outcomes after its own run has failed.
  std::chrono::nanoseconds patience = std::chrono::seconds(2);
};

struct PairsRecord : RunRecord {
  Links measured{};
};

}  // namespace tutti::tool
