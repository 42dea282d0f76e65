#include "launch/launcher_process.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "values/cores.hpp"

namespace tutti::internal {
namespace {

// Names in /proc, which has 15 letters; "mpiexec.hydra" is one of "mpiexec".
constexpr std::array<std::string_view, 13> launcher_names{
    "mpirun",     "mpiexec",         "orterun",        "orted", "prte",
    "prted",      "prterun",         "prun",           "palsd", "pmi_proxy",
    "slurmstepd", "hydra_pmi_proxy", "hydra_bstrap_pr"};

/// A process, by /proc/PID/stat; pid 0: not known.
struct Process {
  int pid = 0;
  int parent = 0;
  std::string name{};
  std::string start{};  ///< In clock ticks since the host's start.
};

Process process_of(int pid) {
  const auto text = text_of(fmt::format("/proc/{}/stat", pid));
  const auto name_begin = text.find('(');
  const auto name_end = text.rfind(')');  // The name may contain anything.
  if (name_begin == std::string::npos || name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  Process process{.pid = pid};
  process.name = text.substr(name_begin + 1, name_end - name_begin - 1);
  std::string skipped;
  fields >> skipped >> process.parent;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  return fields >> process.start ? process : Process{};
}

bool is_launcher(std::string_view name) {
  return std::ranges::any_of(launcher_names, [name](std::string_view known) {
    return name == known || name.starts_with(std::string(known) + '.');
  });
}

/// True if `environment`, as in /proc/PID/environ, has this process's values of the variables.
bool has_own_values(std::string_view environment, std::span<const char* const> variables) {
  return std::ranges::all_of(variables, [environment](const char* variable) {
    const char* own = std::getenv(variable);
    // The environment begins with the first entry; a null byte ends each one.
    const auto entry = '\0' + std::string(variable) + '=' + (own == nullptr ? "" : own);
    const auto all = '\0' + std::string(environment);
    return own == nullptr ? all.find(entry) == std::string::npos
                          : all.find(entry + '\0') != std::string::npos;
  });
}

}  // namespace

std::string launcher_process(std::span<const char* const> variables) {
  for (int pid = ::getppid(); pid > 0;) {
    const auto process = process_of(pid);
    if (process.pid == 0) return {};
    const auto found = fmt::format("{}-{}", process.pid, process.start);
    if (is_launcher(process.name)) return found;
    const auto environment = text_of(fmt::format("/proc/{}/environ", pid));
    // Of another user, such as sudo, whose environment cannot be read; or the first process, which
    // is the parent of all that lost theirs.
    if (environment.empty() || pid == 1) return {};
    if (!has_own_values(environment, variables)) return found;
    pid = process.parent;
  }
  return {};
}

}  // namespace tutti::internal
