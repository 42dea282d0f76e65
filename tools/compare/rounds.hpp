#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "report/saved_run.hpp"

namespace tutti::tool {

struct RoundsOptions {
  std::string old_command{};  ///< Run by sh, with options of `tutti bench` added at its end.
  std::string new_command{};
  std::optional<std::int64_t> rounds{};  ///< Empty: as many as fit into max_total.
  std::chrono::nanoseconds max_total = std::chrono::seconds(60);
};

/// Runs of two commands; those with the same index followed each other.
struct Rounds {
  std::vector<SavedRun> old_runs{};
  std::vector<SavedRun> new_runs{};
};

/// Runs both commands once per round. Which one is first is random, but in two rounds each is first
/// once: a machine that gets steadily slower treats both alike. The number of rounds does not
/// depend on what was measured.
/// @throws Failure with the exit status of a command that fails, usage if it prints no JSON.
Rounds run_rounds(const RoundsOptions& options, std::FILE* err);

}  // namespace tutti::tool
