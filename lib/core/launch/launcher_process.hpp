#pragma once

#include <span>
#include <string>

namespace tutti::internal {

/// Returns "PID-START" of the launcher's process on this host: the nearest ancestor that is a known
/// launcher, or that has other values than this process in `variables`, which the launcher gives to
/// each rank. All ranks of a job on this host get the same text if only programs with those values
/// are between them and the launcher. Empty if /proc does not tell, and for process 1.
std::string launcher_process(std::span<const char* const> variables);

}  // namespace tutti::internal
