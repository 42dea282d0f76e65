#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <tutti/cluster.hpp>
#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

namespace [[gnu::visibility("default")]] tutti {

struct InitOptions {
  /// Fields that are set win over the environment. rank and size go together.
  std::optional<int> rank{};
  std::optional<int> size{};
  GroupOptions group{};  ///< Everything else; a rank and size set here are an Error.
  std::shared_ptr<const ClusterEnvironment> environment{};  ///< Null: VariablesEnvironment.
};

/// Makes a group from the launcher's variables. Keeps no state: a second call makes a second group,
/// which needs another GroupOptions::name under the same store. Writes no environment variable.
/// @throws Error not_initialized when neither the caller nor the environment gives rank and size.
ProcessGroup init(const InitOptions& options = {});

/// Where the ranks of `info` meet, with keys of its run alone. Rank 0 hosts the store when it has
/// to (ClusterInfo::hosts_store); the last holder of what it got then waits, 10 seconds at most,
/// until the other ranks have left.
/// @throws Error invalid_argument when no address is known, timeout without an answer, backend
///         when rank 0's port is taken or another program answers.
std::shared_ptr<Store> open_cluster_store(
    const ClusterInfo& info, std::chrono::nanoseconds timeout = std::chrono::minutes(5));

}  // namespace tutti
