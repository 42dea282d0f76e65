#pragma once

#include "run/launch_options.hpp"

namespace tutti::tool {

/// Starts the ranks, hosts their store, passes on their output and the signals this process gets,
/// and returns when no process of them is left. When one fails the others are ended: SIGTERM, half
/// a second later SIGKILL; on the other nodes too. Call it from the main thread of a process that
/// has no other children.
///
/// A rank's variables: TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, TUTTI_NODE,
/// TUTTI_STORE, and those that torchrun sets.
///
/// @return the exit status: 0 when every rank ended with 0, else that of the rank which failed
///         first; 128 + N for signal N.
/// @throws Failure unavailable when processes cannot be started or the nodes do not meet; code 127
///         and 126 as a shell's when the program is not found or cannot be run.
int launch(const LaunchOptions& options);

}  // namespace tutti::tool
