#pragma once

#include <tutti/process_group.hpp>

namespace tutti::internal {

inline bool on_host(ProcessGroup& group) {
  return group.memory().device().type == DeviceType::cpu;
}

/// One blocking call whose arrays are in host memory, whatever the group's device: `op.in` lies in
/// `op.out`, in place. On a device the array travels through the group's memory, and the host
/// waits until the call has ended.
void host_call(ProcessGroup& group, Op op, const CallOptions& options);

}  // namespace tutti::internal
