#include "launch/launcher_process.hpp"

#include <unistd.h>

#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "values/cores.hpp"

namespace tutti::internal {
namespace {

/// What /proc/PID/stat says of a process; pid 0: nothing.
struct Process {
  int pid = 0;
  int parent = 0;
  std::string start{};  ///< In clock ticks since the host's start.
};

Process process_of(int pid) {
  const auto text = text_of(fmt::format("/proc/{}/stat", pid));
  const auto name_end = text.rfind(')');  // The name may contain anything.
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  Process process{.pid = pid};
  std::string skipped;
  fields >> skipped >> process.parent;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  return fields >> process.start ? process : Process{};
}

/// False too for a process of another user, whose environment cannot be read.
bool has_variable(int pid, std::string_view variable) {
  const auto environment = text_of(fmt::format("/proc/{}/environ", pid));
  const auto entry = fmt::format("{}=", variable);
  return environment.starts_with(entry) || environment.find('\0' + entry) != std::string::npos;
}

}  // namespace

std::string launcher_process(const char* variable) {
  for (int pid = ::getppid(); pid > 0;) {
    const auto process = process_of(pid);
    if (process.pid == 0) return {};
    if (!has_variable(pid, variable)) return fmt::format("{}-{}", process.pid, process.start);
    pid = process.parent;
  }
  return {};
}

}  // namespace tutti::internal
