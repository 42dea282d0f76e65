#pragma once

#include <string>

namespace tutti::internal {

/// Returns "PID-START" of the launcher's process on this host: the nearest ancestor whose
/// environment does not have `variable`, which the launcher gives to ranks alone. All ranks of one
/// job on one host get the same text, and no two jobs do. Empty if /proc does not tell.
std::string launcher_process(const char* variable);

}  // namespace tutti::internal
