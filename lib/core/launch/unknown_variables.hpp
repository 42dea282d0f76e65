#pragma once

#include <string>
#include <vector>

namespace tutti::internal {

/// Returns a sentence for each variable TUTTI_... of `environment` (as environ) that nothing reads,
/// with the known name that differs least, if it differs by at most two letters, and a third of
/// them. Variables TUTTI_TEST_... are left out.
std::vector<std::string> unknown_variables(const char* const* environment);

}  // namespace tutti::internal
