#pragma once

#include <memory>
#include <optional>

#include <tutti/cluster.hpp>
#include <tutti/process_group.hpp>
#include <tutti/store.hpp>

namespace [[gnu::visibility("default")]] tutti {

struct InitOptions {
  /// Fields that are set win over the environment. rank and size go together.
  std::optional<int> rank{};
  std::optional<int> size{};
  GroupOptions group{};  ///< Everything else; its rank and size are not used.
  std::shared_ptr<const ClusterEnvironment> environment{};  ///< Null: VariablesEnvironment.
};

/// Makes a group from what the launcher told. Keeps no state: a second call makes a second group,
/// which needs another GroupOptions::name under the same store. Writes no environment variable.
/// @throws Error not_initialized when neither the caller nor the environment tells rank and size.
ProcessGroup init(const InitOptions& options = {});

}  // namespace tutti
