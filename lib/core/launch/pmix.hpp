#pragma once

#include <string_view>

#include <tutti/deadline.hpp>

#include "launch/key_value_space.hpp"

namespace tutti::internal {

/// The key-value space of launchers with PMIx (Open MPI, PRRTE, Slurm), through the launcher's own
/// libpmix, which is loaded at run time. PMIx counts its users: MPI may use it meanwhile, but
/// not initialise it after its last user has left. A call that the deadline has ended goes on on a
/// thread of its own, and the connection then stays open.
class PmixConnection final : public KeyValueSpace {
 public:
  /// The value of PMIX_NAMESPACE; empty: the launcher has no PMIx.
  static std::string_view given() noexcept;
  /// @throws Error unsupported if libpmix cannot be loaded, if this process has another rank there,
  ///         or outside of MPI_Init and MPI_Finalize in a program with MPI; backend if the launcher
  ///         answers with an error; timeout.
  PmixConnection(int rank, Deadline deadline);
  ~PmixConnection() override;
  PmixConnection(const PmixConnection&) = delete;
  PmixConnection& operator=(const PmixConnection&) = delete;

  std::size_t most_letters() override;
  void put(const std::string& key, const std::string& value) override;
  void wait_for_all() override;
  std::string get(const std::string& key) override;

 private:
  struct Api;
  static const Api& api();
  void check(int status, std::string_view call) const;

  const Deadline deadline_;
  bool in_call_ = false;  ///< A call that waits for the launcher runs, or has not ended in time.
};

}  // namespace tutti::internal
