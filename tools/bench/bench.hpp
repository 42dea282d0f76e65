#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/measure.hpp"
#include "bench/plan.hpp"
#include "common/exit_code.hpp"
#include "run/interrupt.hpp"
#include "run/source.hpp"

namespace tutti::tool {

enum class Format : std::uint8_t { table, json, ndjson, csv, markdown };

struct BenchOptions : RunOptions {
  Request request{};
  Timing timing{};
  bool percentiles_given = false;
  bool cold = false;
  std::chrono::nanoseconds max_total = std::chrono::minutes(10);
  bool skip_unavailable = false;
  Format format = Format::table;
  std::vector<std::string> files{};      ///< Their endings say the formats.
  std::vector<std::string> env_allow{};  ///< Beside the usual ones.
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> argv{};
  bool handles_signals = false;  ///< SIGINT and SIGTERM end the run early.
  /// How long rank 0 waits for word from the others once its own run has failed.
  std::chrono::nanoseconds patience = std::chrono::seconds(2);
  // For tests.
  Interrupt* interrupt = nullptr;
};

/// Measures; the output goes to `out`, talk and errors to `err`.
/// @throws Failure for what stops it before anything was measured.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
