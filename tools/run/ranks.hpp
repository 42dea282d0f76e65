#pragma once

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

/// The call that a rank is in, for the report of a hang. Written by that rank, read after the rank
/// has ended.
struct Position {
  std::string what{};           ///< "all_reduce".
  std::int64_t bytes = -1;      ///< -1: not in a measurement.
  std::int64_t iteration = -1;  ///< -1: warm-up or check.
};

/// The arguments of a rank's body.
struct Rank {
  ProcessGroup& group;
  std::shared_ptr<Store> store;  ///< Prefix store for keys of the tool.
  Position& position;
  const GroupOptions& options;  ///< The group was made with them.
};
using RankBody = std::function<void(Rank&)>;

/// An exception that ended a rank.
struct Failed {
  Exit exit = Exit::internal;  ///< The exit code of the command.
  std::optional<Errc> errc{};  ///< The code of an error of the library.
  std::string text{};          ///< The text of the exception in one line.
  Error::Where where{};        ///< The location of an error of the library.
};

/// The last collective that succeeded on a rank.
struct LastCall {
  Operation operation{};
  std::uint64_t seq = 0;
  double seconds_ago = 0;  ///< From its start to the end of the rank, in seconds.
};

/// The end of a rank.
struct Outcome {
  int rank = 0;
  std::optional<Failed> failed{};  ///< Empty after success.
  std::optional<LastCall> last{};  ///< The last call of a rank that failed.
  Position position{};             ///< Known for ranks of this process only.
  bool silent = false;             ///< A rank of another process that sent no outcome.
};

/// Wraps the backend of one rank; for tests. Empty: nothing.
using Decorate = std::function<std::unique_ptr<Backend>(int rank, std::unique_ptr<Backend>)>;

/// Runs `options.size` ranks as threads of this process over a store in memory, and waits for all
/// of them. `where` has the device of each rank. A rank that throws aborts its group, so that the
/// other ranks end too. @throws Failure unavailable if the threads cannot be started.
std::vector<Outcome> run_threads(const GroupOptions& options, const Decorate& decorate,
                                 const RankBody& body, const DevicePlacement& where);

/// Runs this process's one rank. `options` has the rank, the size and, if there are several ranks,
/// the store. An exception aborts the group and becomes Outcome::failed.
Outcome run_rank(GroupOptions options, const Decorate& decorate, const RankBody& body);

}  // namespace tutti::tool
