#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/option.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// The number of arguments (tutti, "run", ...) that are tutti's own; the rest is PROGRAM and its
/// arguments.
std::size_t own_arguments(const std::vector<std::string>& argv);

/// The options of `tutti run`, which set `to`. `program` is for the help alone.
OptionList run_options(LaunchOptions& to, std::string& program);

/// Checks the options together and sets the command. @throws Failure usage.
void check_run(LaunchOptions& options, const std::vector<std::string>& argv);

/// Starts the ranks and hosts their store. Forwards the ranks' output to this process's output, and
/// this process's signals to the ranks. Returns when no process of the ranks is left. When a rank
/// fails, ends the other ranks on all nodes: SIGTERM, half a second later SIGKILL. Call it from the
/// main thread of a process without other children.
///
/// A rank's variables: TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, TUTTI_NODE,
/// TUTTI_STORE, and torchrun's variables.
///
/// @return the exit status: 0 if every rank exited with 0, otherwise the status of the rank that
/// failed first; 128 + N for signal N.
/// @throws Failure unavailable if processes cannot be started or a node is missing; code 127 and
///         126 as a shell if the program is not found or cannot be run.
int launch(const LaunchOptions& options);

}  // namespace tutti::tool
