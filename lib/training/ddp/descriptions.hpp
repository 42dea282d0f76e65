#pragma once

#include <span>
#include <string>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// Returns "parameter 3 'fc.weight'", the name of a parameter in errors.
std::string name_of(std::span<const Parameter> parameters, std::size_t id);

/// Collective. Checks the reducer's arguments on this rank and compares the arguments of all ranks:
/// sends one hash to each rank, and broadcasts the descriptions of two ranks if hashes differ.
/// @throws Error invalid_argument if this rank's arguments are invalid; otherwise mismatch if the
/// arguments of the ranks differ.
void compare_descriptions(ProcessGroup& group, std::span<const Parameter> parameters,
                          std::span<const Parameter> buffers, const ReducerOptions& options);

}  // namespace tutti::ddp
