#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <tutti/cluster.hpp>
#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Options of init(). A value type.
struct InitOptions {
  /// Fields that are set override the environment. Set rank and size together or not at all.
  std::optional<int> rank{};
  std::optional<int> size{};  ///< Like `rank`.
  /// All other options; rank and size must not be set here. If `device` is not set and the backend
  /// works on CUDA devices alone ("nccl"), init() sets it to the launcher's local rank modulo the
  /// number of devices that this process sees: one process per device.
  GroupOptions group{};
  std::shared_ptr<const ClusterEnvironment> environment{};  ///< Null: VariablesEnvironment.
  /// Without a launcher, and without rank and size, the group has this process alone: rank 0 of 1.
  bool alone_without_launcher = false;
};

/// Makes a group from the launcher's variables. Keeps no state: a second call makes a second group,
/// which needs another GroupOptions::name under the same store. Writes no environment variable.
/// @throws Error not_initialized when neither the caller nor the environment gives rank and size,
///         unless `alone_without_launcher` is set;
///         invalid_argument when a device has to be chosen and no launcher gives the local rank;
///         errors of open_cluster_store() and ProcessGroup::create().
ProcessGroup init(const InitOptions& options = {});

/// The store of the ranks of `info`, limited to the keys of this run. Rank 0 hosts a tcp store if
/// ClusterInfo::hosts_store is set; then the release of rank 0's last reference waits up to 10
/// seconds for the other ranks to leave. A store that rank 0 hosts without a token listens on
/// loopback alone, where ranks of one host connect, unless ClusterInfo::open_store is set. Without
/// an address the ranks of several hosts of a launcher with PMI-1 or PMIx exchange one, and a new
/// token, through the launcher's key-value space: every rank has to call, and waits for the others.
/// @throws Error invalid_argument without a known address, if another program answers, or if ranks
///         of several hosts have neither a token nor open_store (on every rank); timeout without an
///         answer, backend if rank 0's port is taken or the launcher's key-value space fails,
///         unsupported if that space cannot be used, mismatch if it holds the text of another
///         version, and errors of StoreToken::read() and open_store().
std::shared_ptr<Store> open_cluster_store(
    const ClusterInfo& info, std::chrono::nanoseconds timeout = std::chrono::minutes(5));

}  // namespace tutti
