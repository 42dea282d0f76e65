#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

#include "common/device.hpp"

namespace tutti::tool {

/// The call that a rank is in, for the report of a hang. Written by that rank alone, read after it
/// ended.
struct Position {
  std::string what{};           ///< "all_reduce".
  std::int64_t bytes = -1;      ///< -1: not in a measurement.
  std::int64_t iteration = -1;  ///< -1: warming up or checking.
};

/// What a rank's body gets.
struct Rank {
  ProcessGroup& group;
  std::shared_ptr<Store> store;  ///< The tool's own keys.
  Position& position;
};
using RankBody = std::function<void(Rank&)>;

/// How a rank ended.
struct Outcome {
  int rank = 0;
  std::exception_ptr error{};  ///< Null when it went well.
  std::chrono::steady_clock::time_point ended{};
  Trace trace{};  ///< Its last calls, when it failed.
  Position position{};
  bool silent = false;  ///< Another process, from which no word came.
};

/// Wraps the backend of one rank; for tests. Empty: nothing.
using Decorate = std::function<std::unique_ptr<Backend>(int rank, std::unique_ptr<Backend>)>;

/// Runs `size` ranks as threads of this process over a store in memory, each on its device of
/// `where`, and waits for all of them. A rank that throws aborts its group, so that the others end
/// too.
/// @throws Failure unavailable when so many threads cannot be started.
std::vector<Outcome> run_threads(int size, const GroupOptions& options, const Decorate& decorate,
                                 const RankBody& body, const Placement& where = {});

/// Runs the one rank that this process is; `options` has its rank and size, and for several the
/// store.
Outcome run_rank(const GroupOptions& options, const RankBody& body);

}  // namespace tutti::tool
