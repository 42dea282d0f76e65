#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] tutti {

/// This process's rank and its group's store, as its launcher gives them. -1 and empty: unknown.
struct ClusterInfo {
  std::string launcher{};   ///< "tutti", "torchrun", "Open MPI", "PMI", "PALS", "Slurm".
  int rank = -1;            ///< 0 .. size - 1.
  int size = -1;            ///< The number of ranks.
  int local_rank = -1;      ///< Among the ranks of this host.
  int local_size = -1;      ///< The number of ranks on this host.
  int node = -1;            ///< Number of this host.
  std::string store{};      ///< Address of the store: "tcp://host:port", "file:///dir".
  bool hosts_store = true;  ///< Rank 0 hosts a tcp store; false: it is already running.
  std::string run{};        ///< Identifies this run and restart; prefix of its keys in the store.
  /// The file of the job's token (StoreToken::read()). Empty: the store has none.
  std::string token_file{};
  std::string job{};             ///< Names the job to an authenticated store.
  std::uint32_t generation = 0;  ///< The number of restarts of the job, for the same.
  /// Rank 0 may host a store without a token that other hosts can reach.
  bool open_store = false;
  /// False: the processes are not the ranks, but processes that use the store beside them.
  bool of_ranks = true;
};

/// The source of the values that the caller of init() left out. Derive from it to use another
/// source.
class ClusterEnvironment {
 public:
  virtual ~ClusterEnvironment();
  /// Empty if the launchers that this class knows did not start this process.
  /// @throws Error invalid_argument for values that contradict each other.
  virtual std::optional<ClusterInfo> detect() const = 0;
};

/// Reads the variables of launchers, in this order: `tutti run` or any program that sets TUTTI_RANK
/// and TUTTI_SIZE, torchrun, Open MPI, PMI (MPICH and others), PALS, Slurm. Rank and size come from
/// the first launcher that has set one of them and are never mixed. Refused: only one of rank and
/// size; a RANK without torchrun, if another launcher has started the same number of processes
/// and given this one another rank; and PMI's variables of another step of Slurm.
///
/// TUTTI_STORE is the address of the store. Without it rank 0 hosts one at MASTER_ADDR, with port
/// TUTTI_STORE_PORT or MASTER_PORT + 1, since torch uses MASTER_PORT itself. Under Slurm without
/// MASTER_ADDR it is on the first host of the step, at a port derived from job and step; under Open
/// MPI and PMI, if all ranks are on one host, on loopback, at a port derived from the launcher's
/// process. With ranks on several hosts the address stays empty under launchers with PMI-1 or PMIx:
/// open_cluster_store() exchanges it through the launcher.
/// TUTTI_TOKEN_FILE names the file of the job's token. Rank 0 warns once, by default_logger(), of
/// variables TUTTI_... that nothing reads.
/// docs/launching.md lists all cases.
class VariablesEnvironment final : public ClusterEnvironment {
 public:
  std::optional<ClusterInfo> detect() const override;
};

/// A sentence for each environment variable TUTTI_... that nothing reads, with the name that was
/// probably meant.
std::vector<std::string> unknown_variables();

}  // namespace tutti
