#pragma once

#include <memory>

#include <tutti/group_options.hpp>

#include "group/trace_layout.hpp"

namespace tutti::internal {

class Rendezvous;

/// Frees the rings of a group. If they are in a file, marks the file as closed and keeps it.
struct TraceDeleter {
  TraceLayout* file = nullptr;
  void operator()(TraceRings* rings) const noexcept;
};
using TraceMemory = std::unique_ptr<TraceRings, TraceDeleter>;

/// The rings of a rank's new group: in memory, or, if TUTTI_TRACE_DIR names a directory, in a new
/// file there that is mapped, which the kernel keeps when the process is killed.
/// @param rendezvous  gives the ranks' files a common number; null: they get none.
/// @throws Error resource_exhausted or backend, with the path, if the file cannot be made.
TraceMemory make_traces(const GroupOptions& options, Rendezvous* rendezvous);

}  // namespace tutti::internal
