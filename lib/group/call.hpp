#pragma once

#include <string_view>

#include <tutti/process_group.hpp>

#include "group/prepare.hpp"

// The entry points of the front for the code above it: gathers, gradients, sync and losses.

namespace tutti::internal {

/// Issues one operation as its blocking verb does. `op` has its kind, the dtype in its arrays, and
/// root, peer, tag and reduce where it has them; `prepare` may set the rest.
///
/// `caller`: the public function, named by the errors of `prepare`; empty: the operation.
void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare = {},
          std::string_view caller = {});
/// Issues the operation as its async verb does. `work`: receives the Work; null: blocks as call()
/// does.
void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare,
          std::string_view caller, Work* work);
/// call() of arrays in host memory, whatever the group's device; `op.in` may lie in `op.out`. On a
/// device the arrays travel through the group's memory, and the host waits until the call has
/// ended. `prepare` enters host arrays.
void host_call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare = {},
               std::string_view caller = {});

inline bool on_host(ProcessGroup& group) {
  return group.memory().device().type == DeviceType::cpu;
}

/// Host memory for staging copies, pinned on CUDA.
Memory& staging_memory(ProcessGroup& group) noexcept;
/// @throws Error unsupported while the stream is captured: the host can wait for nothing on it.
void check_host_may_wait(ProcessGroup& group, Stream stream);

}  // namespace tutti::internal
