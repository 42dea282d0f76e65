#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/process_group.hpp>

#include "support/array.hpp"

// Helpers that inspect the state after a call.

namespace tutti::test {

/// The elements of an array of the group's device.
inline Array content_of(ProcessGroup& group, const ConstTensorView& view) {
  Array content(view.dtype, view.shape);
  if (view.bytes() != 0) group.memory().copy(content.bytes().data(), view.data, view.bytes(), {});
  return content;
}

/// True if small rows are inlined in the message of sizes. On a device they follow in a second
/// round, if there are any.
inline bool inlines(ProcessGroup& group) {
  return group.memory().device().type == DeviceType::cpu;
}

/// Number of collectives that this rank has issued on the group.
inline std::uint64_t calls_of(const ProcessGroup& group) {
  std::uint64_t calls = 0;
  for (const TraceEntry& entry : group.trace())
    if (!is_point_to_point(entry.operation)) calls = std::max(calls, entry.seq + 1);
  return calls;
}

}  // namespace tutti::test
