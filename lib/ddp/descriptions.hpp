#pragma once

#include <span>
#include <string>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// "parameter 3 'fc.weight'", as errors name it.
std::string name_of(std::span<const Parameter> parameters, std::size_t id);

/// Collective. Checks what this rank passes to its reducer, and compares it with the other ranks:
/// one message with a hash to each rank, and the descriptions of two ranks if they differ.
/// @throws Error invalid_argument for a mistake of this rank; mismatch for another difference.
void compare_descriptions(ProcessGroup& group, std::span<const Parameter> parameters,
                          std::span<const Parameter> buffers, const ReducerOptions& options);

}  // namespace tutti::ddp
