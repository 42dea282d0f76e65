#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "shared_state.hpp"

namespace tutti::backend::local {

/// The array that this rank puts into its entry if the call is inlined, which all ranks decide
/// alike: its only collective has arrays that fit into an entry. Empty if the call is not inlined.
std::optional<std::span<const std::byte>> inlined_array(std::span<const Op> ops, int rank,
                                                        int size);

/// Runs this rank's share of operation `k` of a call: reads the other ranks' arrays and writes its
/// own result, or its slice or block of the results of others. The shares of all ranks make up the
/// operation.
/// @throws Error backend when the function of a custom reduction throws.
void execute(const Entered& call, std::size_t k, int rank, int size);

}  // namespace tutti::backend::local
