#pragma once

namespace tutti::internal {

/// False if this process has no MPI library. True if it has one, between MPI_Init and MPI_Finalize.
/// @throws Error unsupported outside of these: MPI owns the connection to the launcher, which it
///         could not open after this library has closed it.
bool mpi_is_initialized();

}  // namespace tutti::internal
