#pragma once

#include "run/launch_options.hpp"

namespace tutti::tool {

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
