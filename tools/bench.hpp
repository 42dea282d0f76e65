#pragma once

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "exit_code.hpp"
#include "launch.hpp"
#include "measure.hpp"
#include "plan.hpp"

namespace tutti::tool {

enum class Format : std::uint8_t { table, json, ndjson, csv, markdown };

struct BenchOptions {
  Request request{};
  Timing timing{};
  bool percentiles_given = false;
  bool cold = false;
  std::chrono::nanoseconds max_total = std::chrono::minutes(10);
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  std::string backend = "auto";
  std::optional<int> ranks{};  ///< Empty: the launcher's.
  bool skip_unavailable = false;
  Format format = Format::table;
  std::vector<std::string> files{};      ///< Their endings say the formats.
  std::vector<std::string> env_allow{};  ///< Beside the usual ones.
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> argv{};
  Decorate decorate{};  ///< For tests.
};

/// Measures; the output goes to `out`, talk and errors to `err`.
/// @throws Failure for what stops it before anything was measured.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
