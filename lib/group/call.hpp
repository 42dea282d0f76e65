#pragma once

#include <string_view>

#include <tutti/process_group.hpp>

#include "group/prepare.hpp"

// Entry points of the front for the layers above it: gathers, gradients, sync and losses.

namespace tutti::internal {

/// Issues one operation like its blocking verb. `op` has its kind, the dtype in its arrays, and,
/// where the operation has them, root, peer, tag and reduce; `prepare` may set the rest.
///
/// `caller`: the public function, which errors of `prepare` name; empty: the operation.
void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare = {},
          std::string_view caller = {});
/// Issues the operation like its async verb. `work` receives the Work; null: blocks as call() does.
void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare,
          std::string_view caller, Work* work);
/// call() for arrays in host memory, for a group on any device; `op.in` may be part of `op.out`. On
/// a device the arrays are copied through the group's memory, and the host waits until the call has
/// ended. `prepare` enters host arrays.
void host_call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare = {},
               std::string_view caller = {});

inline bool on_host(ProcessGroup& group) {
  return group.memory().device().type == DeviceType::cpu;
}

/// Host memory for staging copies, pinned on CUDA.
Memory& staging_memory(ProcessGroup& group) noexcept;
/// @throws Error unsupported for a captured stream, on which the host cannot wait.
void check_host_may_wait(ProcessGroup& group, Stream stream);

}  // namespace tutti::internal
