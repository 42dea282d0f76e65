#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tutti/trace.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The trace of one rank of one group in a file of TUTTI_TRACE_DIR. The file outlives the process.
/// A value type.
struct TraceFile {
  std::string group{};     ///< Name of the group, "world/0.1".
  std::uint64_t made = 0;  ///< Equal in the files of one group; 0: the caller made its Backend.
  int rank = 0;            ///< In the group.
  int size = 1;            ///< Of the group.
  std::int64_t pid = 0;    ///< The process, in its own namespace.
  std::string host{};      ///< Name of its host.
  bool closed = false;     ///< The group was destroyed; false: it exists, or its process died.
  std::chrono::system_clock::time_point opened{};  ///< When the rank began to make the group.
  std::chrono::nanoseconds wall_offset{};          ///< Time of day minus TraceEntry::started.
  Trace collectives{};                             ///< At most 64, oldest first.
  Trace messages{};                                ///< Sends and receives; likewise.
};

/// Decodes the bytes of a trace file, which it does not trust. Bytes of texts that are not
/// printable ASCII are replaced. The bytes, peers, dtypes and reductions of entries may have any
/// value; those of a refused call may be impossible.
/// @throws Error invalid_argument if they are not a whole trace file; the text says why.
TraceFile read_trace(std::span<const std::byte> file);

}  // namespace tutti
