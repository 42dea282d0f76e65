#pragma once

#include <string>

#include "common/exit_code.hpp"

namespace tutti::tool {

/// Reads the trace files (*.trace) of a directory and prints what is wrong in each group to stdout,
/// as text or as JSON. Exit::found if something is wrong.
/// @throws Failure usage if the directory cannot be read; unavailable if it has no trace file.
Exit run_diagnose(const std::string& directory, bool json);

}  // namespace tutti::tool
