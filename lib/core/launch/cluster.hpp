#pragma once

#include <tutti/backend/backend_table.hpp>
#include <tutti/cluster.hpp>

namespace tutti::internal {

/// True if the launcher that gave the rank has a key-value space, by which rank 0 can publish the
/// address of a store: PMI-1, or PMIx. Equal on all ranks that have the launcher's variables.
[[gnu::visibility("hidden")]] bool has_key_value_space(const ClusterInfo& info);

/// TUTTI_STORE_PORT; 0 if it is not set.
[[gnu::visibility("hidden")]] int named_store_port();

/// Sets info.store and info.hosts_store from the environment and info.launcher. Leaves them
/// unchanged if no variable gives an address. `by_launcher`: rank and size are the launcher's, so
/// that its key-value space serves them.
[[gnu::visibility("hidden")]] void read_store(ClusterInfo& info, bool by_launcher = true);

/// True if init() has to choose the device of a group: its backend works on CUDA devices alone, and
/// the caller has set no device.
bool needs_device(const BackendEntry& entry, const GroupOptions& group);

/// The device of a rank, one process per device. `launched`: empty, or the launcher's values.
/// @throws Error invalid_argument if the local rank is unknown.
Device device_of_rank(const BackendEntry& entry, const GroupOptions& group,
                      const std::optional<ClusterInfo>& launched);

}  // namespace tutti::internal
