#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

#include "common/device.hpp"
#include "common/exit_code.hpp"

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

/// An exception that ended a rank.
struct Failed {
  Exit exit = Exit::internal;  ///< The exit code of the command.
  std::optional<Errc> errc{};  ///< Of an error of the library,
  std::string text{};          ///< in one line,
  Error::Where where{};        ///< and its place.
};

/// The last collective of a rank that ended well.
struct LastCall {
  Operation operation{};
  std::uint64_t seq = 0;
  double seconds_ago = 0;  ///< From its start to the end of the rank.
};

/// How a rank ended.
struct Outcome {
  int rank = 0;
  std::optional<Failed> failed{};  ///< Empty when it went well.
  std::optional<LastCall> last{};  ///< Of a rank that failed.
  Position position{};             ///< Of a rank of this process.
  bool silent = false;             ///< Another process, from which no word came.
};

/// Wraps the backend of one rank; for tests. Empty: nothing.
using Decorate = std::function<std::unique_ptr<Backend>(int rank, std::unique_ptr<Backend>)>;

/// Runs `options.size` ranks as threads of this process over a store in memory, each on its device
/// of `where`, and waits for all of them. A rank that throws aborts its group, so that the others
/// end too.
/// @throws Failure unavailable when so many threads cannot be started.
std::vector<Outcome> run_threads(const GroupOptions& options, const Decorate& decorate,
                                 const RankBody& body, const DevicePlacement& where);

/// Runs the one rank that this process is; `options` has its rank and size, and for several the
/// store.
Outcome run_rank(GroupOptions options, const Decorate& decorate, const RankBody& body);

}  // namespace tutti::tool
