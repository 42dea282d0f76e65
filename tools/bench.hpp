#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/cluster.hpp>

#include "device.hpp"
#include "exit_code.hpp"
#include "interrupt.hpp"
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
  std::optional<DeviceRequest> device{};  ///< Empty: usual_device(backend).
  std::optional<int> ranks{};             ///< On this node. Empty: the launcher's.
  bool threads = false;                   ///< These are threads of this process.
  int nodes = 1;
  int node = 0;
  std::string rendezvous{};           ///< "host:port" of node 0's store; several nodes only.
  std::optional<int> expect_ranks{};  ///< Of all nodes; another number is refused.
  std::string store{};                ///< Instead of the launcher's.
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
  Decorate decorate{};
  Interrupt* interrupt = nullptr;
  std::shared_ptr<const ClusterEnvironment> environment{};  ///< Null: VariablesEnvironment.
};

/// Measures; the output goes to `out`, talk and errors to `err`.
/// @throws Failure for what stops it before anything was measured.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
