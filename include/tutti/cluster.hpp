#pragma once

#include <optional>
#include <string>

namespace [[gnu::visibility("default")]] tutti {

/// This process's place among the others, as its launcher tells it. -1 and empty: not told.
struct ClusterInfo {
  std::string launcher{};  ///< "tutti", "torchrun".
  int rank = -1;
  int size = -1;
  int local_rank = -1;  ///< Among the ranks of this host.
  int local_size = -1;
  int node = -1;        ///< Number of this host.
  std::string store{};  ///< "file:///dir".
};

/// Where init() learns what its caller left out. Replace it to take the place from elsewhere.
class ClusterEnvironment {
 public:
  virtual ~ClusterEnvironment();
  /// Empty when this process was not started by such a launcher.
  /// @throws Error invalid_argument when what it tells contradicts itself.
  virtual std::optional<ClusterInfo> detect() const = 0;
};

/// Reads TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE; without them torchrun's RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK; and TUTTI_STORE for either.
class VariablesEnvironment final : public ClusterEnvironment {
 public:
  std::optional<ClusterInfo> detect() const override;
};

}  // namespace tutti
