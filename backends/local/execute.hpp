#pragma once

#include "shared_state.hpp"

namespace tutti::backend::local {

/// Runs this rank's share of operation `k` of a running round: reads the other ranks' arrays and
/// writes whole results or this rank's slice of them. The shares of all ranks make up the
/// operation. @throws Error backend when the function of a custom reduction throws.
void execute(const Round& round, std::size_t k, int rank, int size);

}  // namespace tutti::backend::local
