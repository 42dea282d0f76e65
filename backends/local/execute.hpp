#pragma once

#include "shared_state.hpp"

namespace tutti::backend::local {

/// This rank's share of operation `k` of a running round: it reads the other ranks' arrays and
/// writes whole results or its slice of them. All ranks' shares together are the operation.
/// @throws Error backend when the function of a custom reduction throws.
void execute(const Round& round, std::size_t k, int rank, int size);

}  // namespace tutti::backend::local
