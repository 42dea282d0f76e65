#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/cluster.hpp>

#include "exit_code.hpp"
#include "launch.hpp"
#include "loss_measure.hpp"
#include "loss_problem.hpp"

namespace tutti::tool {

struct LossOptions {
  std::vector<LossKind> kinds{};
  LossPlan plan{};
  Split split = Split::uneven;
  std::string backend = "auto";
  std::optional<int> ranks{};  ///< Threads of this process. Empty: the launcher's.
  std::string store{};         ///< Instead of the launcher's.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  bool json = false;
  std::vector<std::string> notes{};  ///< What was left out.
  std::vector<std::string> argv{};
  // For tests.
  Decorate decorate{};
  std::shared_ptr<const ClusterEnvironment> environment{};  ///< Null: VariablesEnvironment.
};

/// Computes each loss on one process and on the ranks, compares and times them; the output goes to
/// `out`, errors to `err`.
/// @return wrong_data when a number differs by more than the tolerance.
/// @throws Failure for what stops it before anything was computed.
Exit run_loss(const LossOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
