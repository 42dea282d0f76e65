#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/backend/backend_table.hpp>
#include <tutti/cluster.hpp>
#include <tutti/process_group.hpp>

#include "common/device.hpp"
#include "common/option.hpp"
#include "report/output.hpp"
#include "report/record.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// The options of a command about its ranks.
struct RunOptions {
  std::string backend = "auto";
  std::optional<DeviceRequest> device{};  ///< Empty: usual_device(backend).
  std::optional<int> ranks{};             ///< Ranks on this node. Empty: the launcher's.
  std::optional<std::int64_t> threads_per_proc{};
  bool threads = false;    ///< The ranks are threads of this process.
  bool processes = false;  ///< The user wants processes.
  std::string iface{};     ///< Of the backend; empty: its choice.
  int nodes = 1;
  int node = 0;
  std::string rendezvous{};           ///< "host:port" of node 0's store; several nodes only.
  std::optional<int> expect_ranks{};  ///< Ranks of all nodes; another number is refused.
  std::string store{};                ///< Replaces the launcher's.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  bool skip_unavailable = false;  ///< Exit 77 instead of 69.
  // For tests.
  Decorate decorate{};
  std::shared_ptr<const ClusterEnvironment> environment{};  ///< Null: VariablesEnvironment.
};

/// Adds the options about ranks, which set `to`; check_launch() completes it.
void add_launch_options(OptionList& options, RunOptions& to);
/// Checks the options together. @throws Failure usage.
void check_launch(RunOptions& options);

constexpr std::int64_t most_ranks = 4096;

/// Returns the backend that the options name, or the choice of "auto". @throws Failure usage, or
/// unavailable if there is no such backend here.
BackendChoice choose_backend(const RunOptions& options, RankPlacement placement);
/// The same for ranks that are processes. With -n on one node, a build without a backend between
/// processes measures threads.
BackendChoice choose_backend(const RunOptions& options);

/// A record of a run that begins now. `backend`: what "auto" would choose on this host.
RunRecord begin_record(const BackendChoice& backend, const OutputOptions& output);
/// Records the backend of the group that the ranks have made.
void record_backend(RunRecord& record, const ProcessGroup& group);

/// The source of the ranks of a run.
struct RankSource {
  enum class Kind : std::uint8_t {
    threads,   ///< `group.size` threads of this process.
    launches,  ///< This process starts processes and measures nothing itself.
    member     ///< This process is rank `group.rank` of `group.size`.
  };
  Kind kind = Kind::threads;
  GroupOptions group{};
  DevicePlacement
      placement{};     ///< Of threads; a rank of several processes has its device in `group`.
  int local_size = 1;  ///< Ranks on this host, if known.
};

/// Returns the source of the ranks: -n, or the launcher. @throws Failure usage; unavailable if the
/// launcher started another number of ranks, or the ranks cannot meet.
RankSource find_ranks(const RunOptions& options, const BackendChoice& backend);

/// Starts this program again as the ranks, which find their rank through the launcher's variables.
/// @param argv      of this program.
/// @param patience  the time for which rank 0 waits for the other ranks' outcomes.
Exit start_ranks(const RunOptions& options, const std::vector<std::string>& argv,
                 std::chrono::nanoseconds patience);

}  // namespace tutti::tool
