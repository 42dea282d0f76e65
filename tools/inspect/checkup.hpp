#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/message.hpp"
#include "common/names.hpp"

namespace tutti::tool {

enum class Level : std::uint8_t {
  ok,
  off,  ///< Not used here, which is no fault: a backend for GPUs on a machine without one.
  warning,
  problem
};
template <>
inline constexpr Names<4> names_of<Level>{"ok", "off", "warning", "problem"};

/// One result of `tutti doctor`.
struct CheckResult {
  Level level = Level::ok;
  std::string area{};    ///< "limits".
  std::string text{};    ///< What was found.
  std::string remedy{};  ///< What to do; empty if all is well.
  std::string ranks{};   ///< "1,3-4"; empty: every rank, or no ranks.
};

/// A value that should be the same on all ranks.
struct Fact {
  Level level = Level::warning;  ///< Of a difference.
  std::string name{};            ///< "TUTTI_CHECK".
  std::string value{};
};

/// What one process says about itself and its machine.
struct Checkup {
  std::string host{};
  int pid = 0;              ///< 0: the rank sent no checkup.
  std::vector<int> cpus{};  ///< That the process may use.
  std::vector<CheckResult> checks{};
  std::vector<Fact> facts{};

  void add(Level level, std::string_view area, std::string text, std::string remedy = {}) {
    checks.push_back({level, std::string(area), std::move(text), std::move(remedy), {}});
  }
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckResult, level, area, text, remedy, ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fact, level, name, value)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Checkup, host, pid, cpus, checks, facts)

/// Checks this process and its machine. `ranks`: the number of ranks of the job, 1 if unknown.
Checkup check_machine(int ranks);

/// Adds the result of two threads that make a group over each backend and reduce an array.
void try_backends(Checkup& checkup);

/// Merges the checkups of all ranks, in rank order: results that all ranks have are listed once,
/// results of some ranks name them, those of levels ok and off are rank 0's. Adds a result for each
/// fact that differs, with the odd ranks first, and for hosts with more ranks than CPUs.
std::vector<CheckResult> compare(const std::vector<Checkup>& ranks);

}  // namespace tutti::tool
