#pragma once

#include <string>
#include <string_view>

#include <tutti/deadline.hpp>

#include "launch/key_value_space.hpp"

namespace tutti::internal {

/// The key-value space that launchers with PMI-1 give their processes: a connection to the launcher
/// at the descriptor PMI_FD, with one command per line (MPICH's and Intel MPI's Hydra, Slurm's
/// mpi/pmi2). A launcher ends all ranks when one that has used the connection ends without closing
/// it, and does not answer afterwards. So a process opens it once, for one exchange.
class PmiConnection final : public KeyValueSpace {
 public:
  /// The value of PMI_FD; empty: the launcher gave none.
  static std::string_view given() noexcept;
  /// @throws Error unsupported if MPI of this process owns the connection and has not been
  ///         initialised, or if the launcher speaks another version; backend if an earlier program
  ///         of this rank has closed it; timeout.
  explicit PmiConnection(Deadline deadline);
  ~PmiConnection() override;
  PmiConnection(const PmiConnection&) = delete;
  PmiConnection& operator=(const PmiConnection&) = delete;

  std::size_t most_letters() override;
  void put(const std::string& key, const std::string& value) override;
  void wait_for_all() override;
  std::string get(const std::string& key) override;

 private:
  /// Sends a command and returns the answer's fields. Refuses an answer without cmd=`expected`,
  /// or that reports an error.
  std::string ask(std::string_view command, std::string_view expected);
  std::string read_line(std::string_view command);

  const int socket_;
  const Deadline deadline_;
  const bool shared_;  ///< MPI of this process opened it, and will close it.
  std::string space_{};
};

}  // namespace tutti::internal
