#pragma once

#include <string_view>

#include <tutti/process_group.hpp>

namespace tutti::internal {

inline bool on_host(ProcessGroup& group) {
  return group.memory().device().type == DeviceType::cpu;
}

/// Where the host's side of copies from and to the group's memory lies best.
Memory& staging_memory(ProcessGroup& group) noexcept;
/// @throws Error unsupported while the stream is captured: the host can wait for nothing on it.
void check_host_may_wait(ProcessGroup& group, Stream stream);

/// One blocking call whose arrays are in host memory, whatever the group's device; `op.in` may lie
/// in `op.out`. On a device the arrays travel through the group's memory, and the host waits until
/// the call has ended. `caller`: the public function, for the errors of that; empty: the operation.
void host_call(ProcessGroup& group, Op op, const CallOptions& options,
               std::string_view caller = {});

}  // namespace tutti::internal
