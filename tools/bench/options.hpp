#pragma once

#include <chrono>

#include "bench/interrupt.hpp"
#include "bench/measure.hpp"
#include "bench/plan.hpp"
#include "report/output.hpp"
#include "run/source.hpp"

namespace tutti::tool {

struct BenchOptions : RunOptions, OutputOptions {
  std::vector<std::string> collectives{};  ///< As given, for Request::collectives.
  Request request{};
  Timing timing{};
  bool percentiles_given = false;
  bool cold = false;
  std::chrono::nanoseconds max_total = std::chrono::minutes(10);
  bool links = false;  ///< Measures the links between all ranks, too.
  bool quiet = false;
  bool verbose = false;
  bool help_sizes = false;       ///< Prints sizes_help() instead.
  bool handles_signals = false;  ///< SIGINT and SIGTERM end the run early.
  /// Time for which rank 0 waits for the other ranks' outcomes after its own run has failed.
  std::chrono::nanoseconds patience = std::chrono::seconds(2);
  // For tests.
  Interrupt* interrupt = nullptr;
};

}  // namespace tutti::tool
