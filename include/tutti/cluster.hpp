#pragma once

#include <optional>
#include <string>

namespace [[gnu::visibility("default")]] tutti {

/// This process's place among the others, as its launcher tells it. -1 and empty: not told.
struct ClusterInfo {
  std::string launcher{};  ///< "tutti", "torchrun", "Open MPI", "PMI", "PALS", "Slurm".
  int rank = -1;
  int size = -1;
  int local_rank = -1;  ///< Among the ranks of this host.
  int local_size = -1;
  int node = -1;            ///< Number of this host.
  std::string store{};      ///< Where they meet: "tcp://host:port", "file:///dir".
  bool hosts_store = true;  ///< Rank 0 hosts a tcp store; false: it is running already.
  std::string run{};        ///< Identifies this run and restart; its keys begin with it.
};

/// Where init() learns what its caller left out. Replace it to take the place from elsewhere.
class ClusterEnvironment {
 public:
  virtual ~ClusterEnvironment();
  /// Empty when this process was not started by such a launcher.
  /// @throws Error invalid_argument when what it tells contradicts itself.
  virtual std::optional<ClusterInfo> detect() const = 0;
};

/// Reads the variables of, in this order: `tutti run` and everybody who sets TUTTI_RANK and
/// TUTTI_SIZE, torchrun, Open MPI, PMI (MPICH and its kin), PALS, Slurm. Rank and size are of the
/// first that has set one of them, never mixed: half a pair is refused, and so is a plain RANK
/// beside another launcher that has started as many processes and given this one another rank.
///
/// The store is TUTTI_STORE; without it rank 0 hosts one at MASTER_ADDR and port TUTTI_STORE_PORT,
/// or MASTER_PORT + 1, since MASTER_PORT is for torch's own; under Slurm on the first host of the
/// step, at a port made from the job's number. docs/launching.md has them all.
class VariablesEnvironment final : public ClusterEnvironment {
 public:
  std::optional<ClusterInfo> detect() const override;
};

}  // namespace tutti
